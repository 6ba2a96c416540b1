"""Decode Avro messages to JSON lines, with the schemas of a registry.

Confluent's client asks the registry, retries and caches. Its deserialiser is not used: it takes three to four times as
long per message.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time
from functools import lru_cache
from io import BytesIO
from typing import Any, Final
from uuid import UUID

import msgspec
from fastavro import parse_schema, schemaless_reader
from fastavro.schema import SchemaParseException, UnknownType

from weir.contracts import UserError
from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka_config import (
    REGISTRY_PASSWORD,
    BrokerAwayError,
    KafkaSettingsError,
    RegistryConfig,
    password_of,
)
from weir.readers import Fault, Reason

__all__ = ["AvroLines", "Registry", "malformed", "registry_of"]


try:
    from cachetools import TTLCache
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry.error import SchemaRegistryError
except ImportError as error:
    raise UserError(
        f"pipeline.kafka.format is avro, but {error.name} is not installed: pip install 'weir-retrieval[avro]'"
    ) from None


_TIMES: Final = frozenset(
    f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos")
)
"""Logical types of numbers that are passed on as numbers."""

_NOT_FOUND: Final = 404
_REFUSALS_KEPT: Final = 1000
_REFUSED_SECONDS: Final = 60.0
"""Seconds until a missing schema is asked for again: the registry may lag behind."""


class Registry:
    """Caches the schemas of a registry; raises `KafkaSettingsError` if no client can be created."""

    def __init__(self, config: RegistryConfig, timeout_seconds: float) -> None:
        self._url = config.url
        try:
            self._client = SchemaRegistryClient(_options(config, timeout_seconds))
        except (OSError, ValueError) as error:
            raise KafkaSettingsError(f"pipeline.kafka.registry: {error}") from error
        self._schemas: dict[int, Any] = {}
        self._refused: TTLCache[int, Fault] = TTLCache(_REFUSALS_KEPT, _REFUSED_SECONDS)

    def schema(self, number: int) -> Any:
        """Return a parsed schema for fastavro, or the fault of messages that name it.

        Raises
        ------
        BrokerAwayError
            If the registry does not answer, or refuses the request.
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
        """Return the texts of referenced schemas, each after its own references, as the keys of a dict."""
        found: dict[str, None] = {}
        for reference in schema.references or ():
            other = self._client.get_version(str(reference.subject), int(reference.version or 1), deleted=True).schema
            found |= {**self._referred(other), other.schema_str or "": None}
        return found


@lru_cache(maxsize=8)
def registry_of(config: RegistryConfig, timeout_seconds: float) -> Registry:
    """Return the registry of these settings, shared by all readers of a process."""
    return Registry(config, timeout_seconds)


def _options(config: RegistryConfig, timeout_seconds: float) -> dict[str, Any]:
    # Few retries: the readers themselves try again.
    found: dict[str, Any] = {"url": config.url, "timeout": timeout_seconds, "max.retries": 2, "retries.wait.ms": 100}
    if config.ca_file is not None:
        found["ssl.ca.location"] = config.ca_file
    if config.user is not None:
        who, setting = f"user {config.user} of the schema registry", "pipeline.kafka.registry.password_file"
        password = password_of(who, config.password_file, setting, REGISTRY_PASSWORD)
        found["basic.auth.user.info"] = f"{config.user}:{password}"
    return found


def _parsed(texts: list[str]) -> Any:
    """Return the last of the schemas, parsed for fastavro; the earlier schemas define types that it refers to."""
    named: dict[str, Any] = {}
    return [parse_schema(_with_plain_times(json.loads(text)), named_schemas=named) for text in texts][-1]


def _with_plain_times(schema: Any) -> Any:
    """Return a schema whose times are plain numbers: the log detects the unit, and decoding is faster."""
    if isinstance(schema, list):
        return [_with_plain_times(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    is_time = schema.get("logicalType") in _TIMES
    return {name: _with_plain_times(one) for name, one in schema.items() if not (is_time and name == "logicalType")}


def malformed(detail: str) -> Fault:
    """Return the fault of a message that cannot be decoded as Avro."""
    return Fault(Reason.MALFORMED_AVRO, detail)


_HEAD: Final = struct.Struct(">bI")
"""A zero byte and the number of the schema."""

_NO_RECORD: Final = (EOFError, ValueError, LookupError, TypeError, OverflowError, RecursionError, struct.error)
"""Exceptions of fastavro for bytes that do not fit the schema."""

_PLAIN: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "string", "enum"})
"""Avro types whose values JSON has, too."""
_UUID_BYTES: Final = 16
_PER_SECOND: Final = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


class AvroLines:
    """Decodes Avro messages to JSON lines with the same field names."""

    def __init__(self, config: PipelineConfig) -> None:
        self._registry = registry_of(config.kafka.registry, config.kafka.timeout_seconds)
        self._numbers = {config.columns.weight: Reason.NON_FINITE_WEIGHT}
        self._numbers |= dict.fromkeys(config.features.dense, Reason.NON_FINITE_FEATURE)
        self._names = {*config.columns.model_dump().values(), *config.features.all}
        self._time, self._unit = config.columns.timestamp, config.timestamp_unit
        self._odd: dict[int, dict[str, bool]] = {}
        # Encode decimals as numbers; the default is text.
        self._encode = msgspec.json.Encoder(decimal_format="number").encode

    def __call__(self, value: bytes) -> bytes | Fault:
        """Return a message value as a JSON line, or the fault of the message; raises `BrokerAwayError`."""
        if len(value) <= _HEAD.size or value[0]:
            return malformed(f"{len(value)} bytes that start with {value[:1].hex()}; expected 00 and a schema's number")
        _, number = _HEAD.unpack_from(value)
        schema = self._registry.schema(number)
        if isinstance(schema, Fault):
            return schema
        content = BytesIO(value[_HEAD.size :])
        try:
            found = schemaless_reader(content, schema, None)
        except _NO_RECORD as error:
            content.seek(0)
            found = self._without_others(content, schema)
            if found is None:
                return malformed(f"no record of its schema: {error or type(error).__name__}")
        if rest := len(value) - _HEAD.size - content.tell():
            return malformed(f"{rest} bytes follow the record; expected none")
        if number not in self._odd:
            self._odd[number] = _odd_fields(schema, self._names)
        return self._line(found, self._odd[number])

    def _without_others(self, content: BytesIO, schema: Any) -> Any:
        """Return the record with only the fields that the settings name, None if they cannot be decoded either."""
        if not isinstance(schema, dict) or "fields" not in schema:
            return None
        fields = [field for field in schema["fields"] if field["name"] in self._names]
        narrow = {"type": "record", "name": schema["name"], "fields": fields}
        try:
            return schemaless_reader(content, schema, narrow)
        except (*_NO_RECORD, SchemaParseException, UnknownType):
            return None

    def _line(self, found: object, odd: Mapping[str, bool]) -> bytes | Fault:
        if isinstance(found, dict):
            for name, is_uuid in odd.items():
                if isinstance(spelled := self._spelled(name, found.get(name), is_uuid=is_uuid), Fault):
                    return spelled
                found[name] = spelled
            # JSON has no NaN or infinity: the encoder would write null.
            for name, reason in self._numbers.items():
                number = found.get(name)
                if isinstance(number, float) and not math.isfinite(number):
                    return Fault(reason, f"{name} is {number}; allowed are finite numbers")
        return self._encode(found)

    def _spelled(self, name: str, value: Any, *, is_uuid: bool) -> Any:
        """Convert an Avro value to a JSON value, or to a fault, by the same rules as Parquet columns."""
        if isinstance(value, bytes):
            return _text(name, value, is_uuid=is_uuid)
        if isinstance(value, list):
            values = [self._spelled(name, one, is_uuid=is_uuid) for one in value]
            return next((one for one in values if isinstance(one, Fault)), values)
        if not isinstance(value, date | time):
            return value
        if name != self._time or isinstance(value, time):
            said = f"{name} is {value}, a date or a time of the day; only {self._time} may be one, a date"
            return Fault(Reason.WRONG_TYPE, said)
        midnight = datetime(value.year, value.month, value.day, tzinfo=UTC)
        factor = _PER_SECOND.get(self._unit)
        return midnight.isoformat() if factor is None else round(midnight.timestamp()) * factor


def _text(name: str, value: bytes, *, is_uuid: bool) -> str | Fault:
    if is_uuid and len(value) == _UUID_BYTES:
        return str(UUID(bytes=value))
    try:
        return value.decode()
    except UnicodeDecodeError:
        return Fault(Reason.NOT_UTF8, f"{name} is not UTF-8; write it as text, or a UUID with the type uuid")


def _odd_fields(schema: Any, names: set[str]) -> dict[str, bool]:
    """Return field -> whether it is a UUID of fixed size, for the fields in `names` of a type that JSON lacks."""
    named = schema.get("__named_schemas", {}) if isinstance(schema, Mapping) else {}
    odd: dict[str, bool] = {}
    for record in _types(schema, named):
        for field in record.get("fields", ()) if isinstance(record, Mapping) else ():
            kinds = [one if isinstance(one, Mapping) else {"type": one} for one in _types(field["type"], named)]
            is_date = {one.get("logicalType") for one in kinds} & {"date", "time-millis", "time-micros"}
            if field["name"] in names and (is_date or not {one["type"] for one in kinds} <= _PLAIN):
                fixed = [one for one in kinds if one["type"] == "fixed"]
                odd[field["name"]] = any(one.get("logicalType") == "uuid" for one in fixed)
    return odd


def _types(kind: Any, named: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the types of a union, or the one type, with names of types replaced by their definitions."""
    if isinstance(kind, list):
        for one in kind:
            yield from _types(one, named)
    else:
        yield named.get(kind, kind) if isinstance(kind, str) else kind
