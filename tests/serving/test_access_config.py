import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from weir.serving.access_config import AuthConfig, ClientConfig, Rule, TlsConfig
from weir.serving.config import ServingConfig

TRUSTED = {"issuer": "i", "audience": "a"}


@pytest.mark.parametrize("config", [TlsConfig, AuthConfig, Rule, ClientConfig])
def test_every_setting_is_documented_and_has_a_default(config: type[BaseModel]) -> None:
    config()
    assert all(field.description for field in config.model_fields.values())


@pytest.mark.parametrize(
    ("config", "settings", "problem"),
    [
        (TlsConfig, {"certificate_file": "a"}, "together"),
        (TlsConfig, {"key_file": "a"}, "together"),
        (TlsConfig, {"client_ca_file": "a"}, "needs certificate_file"),
        (AuthConfig, {"jwks": "a"}, "issuer and audience"),
        (AuthConfig, {"jwks": "a", "issuer": "i"}, "issuer and audience"),
        (AuthConfig, {"jwks": "http://example.com/keys", **TRUSTED}, "https"),
        (AuthConfig, {"jwks": "ftp://127.0.0.1/keys", **TRUSTED}, "https"),
        (AuthConfig, {"jwks": "file:///etc/keys", **TRUSTED}, "https"),
        (AuthConfig, {"algorithms": ["HS256"]}, "algorithms"),
        (AuthConfig, {"algorithms": ["none"]}, "algorithms"),
        (AuthConfig, {"allow": [{"to": ["Delete"]}]}, "allow"),
        (AuthConfig, {"allow": [{"certificates": ["monitor"]}]}, "certificates"),
        (ServingConfig, {"auth": {"allow": [{"to": ["Retrieve"]}]}}, "need auth.jwks"),
        (ServingConfig, {"auth": {"calls_per_second": 1}}, "need auth.jwks"),
        (ClientConfig, {"token_file": "a"}, "tls = true"),
        (ClientConfig, {"ca_file": "a"}, "tls = true"),
        (ClientConfig, {"tls": True, "key_file": "a"}, "together"),
    ],
)
def test_what_would_not_protect_is_refused(config: type[BaseModel], settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        config.model_validate(settings)


def test_files_are_the_same_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    client = ClientConfig.model_validate({"tls": True, "token_file": "token"})
    auth = AuthConfig.model_validate({"jwks": "keys.json", **TRUSTED})
    monkeypatch.chdir("/")
    assert ClientConfig.model_validate_json(client.model_dump_json()).token_file == tmp_path / "token"
    assert json.loads(auth.model_dump_json())["jwks"] == str(tmp_path / "keys.json")
    assert AuthConfig.model_validate({"jwks": "http://[::1]:80/keys", **TRUSTED}).jwks == "http://[::1]:80/keys"
