"""Settings for reading a topic and its schema registry; passwords come from files or the environment."""

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from weir.contracts import UserError
from weir.contracts.base.models import FrozenModel

__all__ = [
    "KEY_PASSWORD",
    "PASSWORD",
    "REGISTRY_PASSWORD",
    "BrokerAwayError",
    "KafkaConfig",
    "KafkaSettingsError",
    "RegistryConfig",
    "StoppedPartitionError",
    "Topic",
    "TopicMissingError",
    "password_of",
]

REGISTRY_PASSWORD: Final = "WEIR_REGISTRY_PASSWORD"  # noqa: S105 - the name of a variable
"""Environment variable of the registry password if no file is set."""
PASSWORD: Final = "WEIR_KAFKA_PASSWORD"  # noqa: S105 - the name of a variable
"""Environment variable of the broker password if no file is set."""
KEY_PASSWORD: Final = "WEIR_KAFKA_KEY_PASSWORD"  # noqa: S105 - the name of a variable
"""Environment variable of the password of an encrypted client key."""
_SCHEME: Final = "kafka://"
_FORM: Final = "kafka://host:port[,host:port]/topic"
_SERVER: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_OURS: Final = {
    "bootstrap.servers": "pipeline.log",
    "security.protocol": "pipeline.kafka.security_protocol",
    "sasl.mechanism": "pipeline.kafka.sasl_mechanism",
    "sasl.mechanisms": "pipeline.kafka.sasl_mechanism",
    "sasl.username": "pipeline.kafka.user",
    "sasl.password": f"pipeline.kafka.password_file or the environment variable {PASSWORD}",
    "ssl.ca.location": "pipeline.kafka.ca_file",
    "ssl.certificate.location": "pipeline.kafka.certificate_file",
    "ssl.key.location": "pipeline.kafka.key_file",
    "ssl.key.password": f"the environment variable {KEY_PASSWORD}",
    "auto.offset.reset": "pipeline.kafka.start",
    **dict.fromkeys(
        ("group.id", "enable.auto.commit", "enable.partition.eof", "isolation.level"), "weir: exactness depends on it"
    ),
}
"""librdkafka options that must not be set by hand -> the setting that controls them."""


class BrokerAwayError(UserError):
    """A broker or schema registry does not answer, or refuses the request."""


class KafkaSettingsError(UserError):
    """No client can be created with these settings."""


class TopicMissingError(UserError, FileNotFoundError):
    """The topic does not exist on the brokers."""


class StoppedPartitionError(UserError):
    """Uncommitted messages are gone from the broker."""

    hint = "restore them, or continue without them: --accept-gap"


def password_of(who: str, file: str | None, setting: str, variable: str) -> str:
    """Return the password of `who` from `file`, or else from the environment variable.

    Raises
    ------
    KafkaSettingsError
        If the file cannot be read, or neither is set.
    """
    if file is not None:
        try:
            return Path(file).read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise KafkaSettingsError(f"{setting}: {error}") from error
    if not (password := os.environ.get(variable)):
        raise KafkaSettingsError(f"{who} has no password: set {setting} or the environment variable {variable}")
    return password


@dataclass(frozen=True)
class Topic:
    """A topic: its name and bootstrap servers, ``host:port``."""

    servers: tuple[str, ...]
    name: str

    @classmethod
    def parse(cls, url: str) -> "Topic":
        """Return the topic at a URL; raises `ValueError` that names the invalid part."""
        servers, slash, name = url.removeprefix(_SCHEME).partition("/")
        if "@" in servers:
            raise ValueError(f"a topic is {_FORM}, without a user: that is the setting pipeline.kafka.user")
        for server in servers.split(","):
            if not _SERVER.fullmatch(server) or int(server.rpartition(":")[2]) > 65_535:
                raise ValueError(f"{server!r} is no broker: a topic is {_FORM}")
        if not slash or not _NAME.fullmatch(name) or name in {".", ".."}:
            allowed = "letters, digits, '.', '_' and '-', at most 249"
            raise ValueError(f"{name!r} is no name of a topic ({allowed}): a topic is {_FORM}")
        return cls(tuple(servers.split(",")), name)

    def __str__(self) -> str:
        return f"{_SCHEME}{','.join(self.servers)}/{self.name}"


class RegistryConfig(FrozenModel):
    """Where the schemas of Avro messages are; whatever speaks the protocol of Confluent's registry."""

    url: str | None = Field(default=None, description="address of the registry, such as https://registry:8081")
    user: str | None = Field(
        default=None, min_length=1, description="name of the user, where the registry asks for one"
    )
    password_file: str | None = Field(
        default=None,
        min_length=1,
        description="file that holds the user's password; without it the environment variable "
        f"{REGISTRY_PASSWORD} does",
    )
    ca_file: str | None = Field(
        default=None, min_length=1, description="certificates (PEM) that the registry is verified with"
    )

    @field_validator("url")
    @classmethod
    def _is_http(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError(f"{value} is no address of a registry: it must start with http:// or https://")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        given = [name for name in ("user", "password_file", "ca_file") if getattr(self, name) is not None]
        if self.url is None and given:
            raise ValueError(f"{given[0]} is set, but no registry: set url, too")
        if self.password_file is not None and self.user is None:
            raise ValueError("password_file is set, but no user: set user, too")
        return self


class KafkaConfig(FrozenModel):
    """How a topic is read, where the log is one."""

    format: Literal["json", "protobuf", "avro"] = Field(
        default="json",
        description="what the messages are: JSON objects, weir.log.v1.Interaction, or records whose schema is in "
        "the registry",
    )
    registry: RegistryConfig = Field(
        default_factory=RegistryConfig, description="where the schemas are, with format = avro"
    )
    start: Literal["earliest", "latest", "committed"] | datetime = Field(
        default="earliest",
        description="where a topic that no commit names is read from: earliest, latest, a time (RFC 3339), "
        "or committed, where a consumer group is",
    )
    group: str | None = Field(
        default=None, min_length=1, description="the consumer group, with start = committed; it is only looked at"
    )
    accept_gap: bool = Field(
        default=False,
        description="continue behind messages that the broker has lost or deleted unread; else such a partition stops",
    )
    timeout_seconds: float = Field(
        default=10.0, gt=0, le=300, description="a broker that does not answer for so long counts as away, seconds"
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="how brokers are reached"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="how a user logs in, with a security_protocol that starts with SASL"
    )
    user: str | None = Field(default=None, min_length=1, description="name of the user, with SASL")
    password_file: str | None = Field(
        default=None,
        min_length=1,
        description=f"file that holds the user's password; without it the environment variable {PASSWORD} does",
    )
    ca_file: str | None = Field(
        default=None,
        min_length=1,
        description="certificates (PEM) that brokers are verified with; default: the system's",
    )
    certificate_file: str | None = Field(
        default=None,
        min_length=1,
        description="certificate (PEM) that shows brokers who this client is; needs key_file",
    )
    key_file: str | None = Field(
        default=None,
        min_length=1,
        description="the certificate's private key (PEM); if it is encrypted, "
        f"the environment variable {KEY_PASSWORD} holds its password",
    )
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="further options of librdkafka's consumer, such as fetch.min.bytes"
    )

    @field_validator("start")
    @classmethod
    def _aware(cls, value: str | datetime) -> str | datetime:
        return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value

    @field_validator("options")
    @classmethod
    def _not_ours(cls, value: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        for name in value:
            if name in _OURS:
                raise ValueError(f"{name} is not for options, it is set by {_OURS[name]}")
        return value

    @model_validator(mode="after")
    def _names_registry(self) -> Self:
        if (self.format == "avro") != (self.registry.url is not None):
            raise ValueError("format = avro and registry.url belong together: give both, or neither")
        return self

    @model_validator(mode="after")
    def _names_group(self) -> Self:
        if (self.start == "committed") != (self.group is not None):
            raise ValueError("start = committed and group belong together: give both, or neither")
        return self

    @model_validator(mode="after")
    def _fits(self) -> Self:
        uses_sasl = self.security_protocol.startswith("SASL")
        if uses_sasl and self.user is None:
            raise ValueError(f"security_protocol {self.security_protocol} needs a user")
        if not uses_sasl and (self.user or self.password_file):
            raise ValueError(
                f"security_protocol {self.security_protocol} knows no user: "
                "it must be SASL_SSL or SASL_PLAINTEXT, or user and password_file must go"
            )
        return self

    @model_validator(mode="after")
    def _has_certificates_with_tls(self) -> Self:
        for name in ("ca_file", "certificate_file", "key_file"):
            if getattr(self, name) and not self.security_protocol.endswith("SSL"):
                raise ValueError(
                    f"security_protocol {self.security_protocol} knows no {name}: it must be SSL or SASL_SSL"
                )
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together: give both, or neither")
        return self
