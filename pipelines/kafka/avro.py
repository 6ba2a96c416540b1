"""Avro messages to JSON lines: five bytes name the schema in a registry, what follows is one record of it.

The client of Confluent has a deserialiser, too. It does the same for each message in three to four times the time.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time
from io import BytesIO
from typing import Any, Final
from uuid import UUID

import msgspec
from fastavro import schemaless_reader
from fastavro.schema import SchemaParseException, UnknownType

from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka.registry import malformed, registry_of
from weir.readers import Fault, Reason

__all__ = ["AvroLines"]

_HEAD: Final = struct.Struct(">bI")
"""A zero, and the number of the schema."""

_NO_RECORD: Final = (EOFError, ValueError, LookupError, TypeError, OverflowError, RecursionError, struct.error)
"""What fastavro raises for bytes that are no record of a schema."""

_PLAIN: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "string", "enum"})
"""Types whose values JSON has, too."""
_UUID_BYTES: Final = 16
_PER_SECOND: Final = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


class AvroLines:
    """Spells records as lines; fields keep their names."""

    def __init__(self, config: PipelineConfig) -> None:
        self._registry = registry_of(config.kafka.registry, config.kafka.timeout_seconds)
        self._numbers = {config.columns.weight: Reason.NON_FINITE_WEIGHT}
        self._numbers |= dict.fromkeys(config.features.dense, Reason.NON_FINITE_FEATURE)
        self._names = {*config.columns.model_dump().values(), *config.features.all}
        self._time, self._unit = config.columns.timestamp, config.timestamp_unit
        self._odd: dict[int, dict[str, bool]] = {}
        # As numbers, decimals mean what they say; by default they would be texts.
        self._encode = msgspec.json.Encoder(decimal_format="number").encode

    def __call__(self, value: bytes) -> bytes | Fault:
        """Return the line that a message means, or what is wrong with it; raises `BrokerAwayError`."""
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
        """Return the fields of a record of which others cannot be decoded, such as text that is no UTF-8; else None."""
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
            # A line has no such numbers: they would become null.
            for name, reason in self._numbers.items():
                number = found.get(name)
                if isinstance(number, float) and not math.isfinite(number):
                    return Fault(reason, f"{name} is {number}; allowed are finite numbers")
        return self._encode(found)

    def _spelled(self, name: str, value: Any, *, is_uuid: bool) -> Any:
        """Return a value as a line has it, or what is wrong with it: columns of Parquet mean the same."""
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
    """Return the fields of records among `names` whose values JSON does not have, and which of them are UUIDs."""
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
    """Yield the types that a union holds, with names resolved."""
    if isinstance(kind, list):
        for one in kind:
            yield from _types(one, named)
    else:
        yield named.get(kind, kind) if isinstance(kind, str) else kind
