"""The schemas of a registry by their number, as fastavro reads with them.

Confluent's client asks, tries again and keeps what it was answered; here is what an answer means for a log.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from weir.contracts import UserError
from weir.pipelines.kafka.errors import BrokerAwayError, KafkaSettingsError
from weir.pipelines.kafka.passwords import password_of
from weir.pipelines.kafka.registry_config import REGISTRY_PASSWORD, RegistryConfig
from weir.readers import Fault, Reason

try:
    from cachetools import TTLCache
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry.error import SchemaRegistryError
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException, UnknownType
except ImportError as error:
    raise UserError(
        f"pipeline.kafka.format is avro, but {error.name} is not installed: pip install 'weir-retrieval[avro]'"
    ) from None

__all__ = ["Registry", "malformed", "registry_of"]

_TIMES: Final = frozenset(
    f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos")
)
"""Logical types of numbers that weir takes for times as they are."""

_NOT_FOUND: Final = 404
_REFUSALS_KEPT: Final = 1000
_REFUSED_SECONDS: Final = 60.0
"""A number without a schema is asked for again after so long: a registry may be behind."""


class Registry:
    """Knows schemas; raises `KafkaSettingsError` where the settings make no client."""

    def __init__(self, config: RegistryConfig, timeout_seconds: float) -> None:
        self._url = config.url
        try:
            self._client = SchemaRegistryClient(_options(config, timeout_seconds))
        except (OSError, ValueError) as error:
            raise KafkaSettingsError(f"pipeline.kafka.registry: {error}") from error
        self._schemas: dict[int, Any] = {}
        self._refused: TTLCache[int, Fault] = TTLCache(_REFUSALS_KEPT, _REFUSED_SECONDS)

    def schema(self, number: int) -> Any:
        """Return a schema as fastavro takes it, or the fault of messages that name it.

        Raises
        ------
        BrokerAwayError
            Where the registry does not answer, or refuses to.
        """
        if number in self._schemas:
            return self._schemas[number]
        if (fault := self._refused.get(number)) is not None:
            return fault
        found = self._ask(number)
        (self._refused if isinstance(found, Fault) else self._schemas)[number] = found
        return found

    def _ask(self, number: int) -> Any:
        try:
            schema = self._client.get_schema(number)
            texts = [*self._referred(schema), schema.schema_str or ""]
        except SchemaRegistryError as error:
            if error.http_status_code != _NOT_FOUND:
                raise BrokerAwayError(f"schema registry {self._url}: {error}") from error
            return malformed(f"{self._url} has no schema {number}")
        except Exception as error:  # what the client's transport raises depends on its release
            problem = str(error) or type(error).__name__
            raise BrokerAwayError(f"schema registry {self._url} does not answer: {problem}") from error
        if schema.schema_type != "AVRO":
            return malformed(f"schema {number} is of type {schema.schema_type}; allowed is AVRO")
        try:
            return _parsed(texts)
        except (SchemaParseException, UnknownType, ValueError) as error:
            return malformed(f"schema {number} cannot be read: {error}")

    def _referred(self, schema: Schema) -> dict[str, None]:
        """Return the schemas that a schema refers to as a set in order, each after those that it refers to itself."""
        found: dict[str, None] = {}
        for reference in schema.references or ():
            other = self._client.get_version(str(reference.subject), int(reference.version or 1), deleted=True).schema
            found |= {**self._referred(other), other.schema_str or "": None}
        return found


@lru_cache(maxsize=8)
def registry_of(config: RegistryConfig, timeout_seconds: float) -> Registry:
    """Return the registry of these settings, one for all readers of a process."""
    return Registry(config, timeout_seconds)


def _options(config: RegistryConfig, timeout_seconds: float) -> dict[str, Any]:
    # Readers try again themselves.
    found: dict[str, Any] = {"url": config.url, "timeout": timeout_seconds, "max.retries": 2, "retries.wait.ms": 100}
    if config.ca_file is not None:
        found["ssl.ca.location"] = config.ca_file
    if config.user is not None:
        who, setting = f"user {config.user} of the schema registry", "pipeline.kafka.registry.password_file"
        password = password_of(who, config.password_file, setting, REGISTRY_PASSWORD)
        found["basic.auth.user.info"] = f"{config.user}:{password}"
    return found


def _parsed(texts: list[str]) -> Any:
    """Return the last schema as fastavro takes it; the others define what it refers to."""
    named: dict[str, Any] = {}
    return [parse_schema(_with_plain_times(json.loads(text)), named_schemas=named) for text in texts][-1]


def _with_plain_times(schema: Any) -> Any:
    """Return a schema whose times are numbers: the unit is found as in every log, and no object is made of each."""
    if isinstance(schema, list):
        return [_with_plain_times(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    is_time = schema.get("logicalType") in _TIMES
    return {name: _with_plain_times(one) for name, one in schema.items() if not (is_time and name == "logicalType")}


def malformed(detail: str) -> Fault:
    """Return the fault of a message that is no record of a schema."""
    return Fault(Reason.MALFORMED_AVRO, detail)
