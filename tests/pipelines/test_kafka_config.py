""""""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka_config import KEY_PASSWORD, PASSWORD, KafkaConfig, KafkaSettingsError, Topic
from weir.pipelines.sources.kafka.client import TopicClient, client_settings
from weir.readers import is_topic

HOSTS = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}", fullmatch=True)
SERVERS = st.tuples(HOSTS, st.integers(0, 65_535)).map(lambda server: f"{server[0]}:{server[1]}")
NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True).filter(lambda name: name not in {".", ".."})


@given(st.lists(SERVERS, min_size=1, max_size=4).map(tuple), NAMES)
def test_a_url_names_brokers_and_a_topic(servers: tuple[str, ...], name: str) -> None:
    topic = Topic(servers, name)
    assert is_topic(str(topic))
    assert Topic.parse(str(topic)) == topic


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("kafka://broker:9092", "'' is no name of a topic"),
        ("kafka://broker:9092/", "'' is no name of a topic"),
        ("kafka://broker:9092/a/b", "'a/b' is no name of a topic"),
        ("kafka://broker:9092/..", "'..' is no name of a topic"),
        ("kafka://broker:9092/" + "a" * 250, "at most 249"),
        ("kafka://broker/clicks", "'broker' is no broker"),
        ("kafka:///clicks", "'' is no broker"),
        ("kafka://a:1,,b:2/clicks", "'' is no broker"),
        ("kafka://a:65536/clicks", "'a:65536' is no broker"),
        ("kafka://me:secret@a:1/clicks", "pipeline.kafka.user"),
    ],
)
def test_another_form_is_refused_by_its_wrong_part(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as error:
        Topic.parse(url)
    assert "secret" not in str(error.value)
    with pytest.raises(ValidationError, match=problem):
        PipelineConfig(log=url)


def test_files_are_no_topics() -> None:
    assert not any(map(is_topic, ["log", "/kafka:/a", "s3://kafka/a.jsonl", "kafka.jsonl"]))
    assert is_topic("kafka://[::1]:9092/a")
    assert Topic.parse("kafka://[::1]:9092/a").servers == ("[::1]:9092",)


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
