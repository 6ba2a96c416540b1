from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from weir.pipelines.kafka.address import Topic
from weir.pipelines.kafka.client import TopicClient, client_settings
from weir.pipelines.kafka.config import KEY_PASSWORD, PASSWORD, KafkaConfig
from weir.pipelines.kafka.errors import KafkaSettingsError

TOPIC = Topic(("127.0.0.1:1",), "clicks")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"start": "now"}, "start"),
        ({"start": "committed"}, "start = committed and group belong together"),
        ({"group": "trainer"}, "start = committed and group belong together"),
        ({"security_protocol": "SASL_SSL"}, "needs a user"),
        ({"user": "me"}, "knows no user"),
        ({"password_file": "f"}, "knows no user"),
        ({"ca_file": "ca.pem"}, "knows no ca_file"),
        ({"certificate_file": "me.pem", "key_file": "key.pem"}, "knows no certificate_file"),
        ({"security_protocol": "SSL", "certificate_file": "me.pem"}, "certificate_file and key_file belong together"),
        ({"security_protocol": "SASL_SSL", "user": "me", "key_file": "key.pem"}, "belong together"),
        ({"options": {"ssl.key.password": "secret"}}, KEY_PASSWORD),
        ({"options": {"isolation.level": "read_uncommitted"}}, "isolation.level is not for options"),
        ({"options": {"group.id": "mine"}}, "exactness depends on it"),
        ({"options": {"sasl.password": "secret"}}, PASSWORD),
        ({"timeout_seconds": 0}, "timeout_seconds"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        KafkaConfig(**settings)  # type: ignore[arg-type]


def test_a_time_without_a_zone_is_utc() -> None:
    assert KafkaConfig(start="2026-03-01T12:00:00").start == datetime(2026, 3, 1, 12, tzinfo=UTC)  # type: ignore[arg-type]
    assert KafkaConfig.model_validate({"start": "latest"}).start == "latest"


def test_the_password_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSWORD, raising=False)
    login = {"security_protocol": "SASL_SSL", "user": "me"}
    with pytest.raises(KafkaSettingsError, match="user me has no password"):
        client_settings(TOPIC, KafkaConfig.model_validate(login))
    monkeypatch.setenv(PASSWORD, "from the environment")
    found = client_settings(TOPIC, KafkaConfig.model_validate(login))
    assert found["sasl.password"] == "from the environment"
    assert found["sasl.mechanism"] == "SCRAM-SHA-512"
    (tmp_path / "password").write_text("from a file\n")
    config = KafkaConfig.model_validate(login | {"password_file": str(tmp_path / "password")})
    assert client_settings(TOPIC, config)["sasl.password"] == "from a file"
    with pytest.raises(KafkaSettingsError, match="missing"):
        client_settings(TOPIC, config.model_copy(update={"password_file": str(tmp_path / "missing")}))


def test_a_client_has_a_certificate_and_its_key_may_have_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_PASSWORD, raising=False)
    config = KafkaConfig(security_protocol="SSL", certificate_file="me.pem", key_file="key.pem")
    found = client_settings(TOPIC, config)
    assert (found["ssl.certificate.location"], found["ssl.key.location"]) == ("me.pem", "key.pem")
    assert "ssl.key.password" not in found
    monkeypatch.setenv(KEY_PASSWORD, "from the environment")
    assert client_settings(TOPIC, config)["ssl.key.password"] == "from the environment"
    assert "ssl.key.password" not in client_settings(TOPIC, KafkaConfig(security_protocol="SSL"))


def test_options_that_librdkafka_does_not_know_are_named() -> None:
    with pytest.raises(KafkaSettingsError, match=r"no\.such\.option"):
        TopicClient(TOPIC, KafkaConfig(options={"no.such.option": 1}))


def test_certificates_that_are_missing_are_named() -> None:
    with pytest.raises(KafkaSettingsError, match=r"ssl\.ca\.location"):
        TopicClient(TOPIC, KafkaConfig(security_protocol="SSL", ca_file="/missing.pem"))
    with pytest.raises(KafkaSettingsError, match=r"ssl\.certificate\.location"):
        TopicClient(TOPIC, KafkaConfig(security_protocol="SSL", certificate_file="/missing.pem", key_file="/k.pem"))
