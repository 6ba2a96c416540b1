"""Avro messages to JSON lines: five bytes name the schema in a registry, what follows is one record of it.

The client of Confluent has a deserialiser, too. It does the same for each message in three to four times the time.
"""

import math
import struct
from io import BytesIO
from typing import Any, Final

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


class AvroLines:
    """Spells records as lines; fields keep their names."""

    def __init__(self, config: PipelineConfig) -> None:
        self._registry = registry_of(config.kafka.registry, config.kafka.timeout_seconds)
        self._numbers = {config.columns.weight: Reason.NON_FINITE_WEIGHT}
        self._numbers |= dict.fromkeys(config.features.dense, Reason.NON_FINITE_FEATURE)
        self._read = {*config.columns.model_dump().values(), *config.features.all}
        # As numbers, decimals mean what they say; by default they would be texts.
        self._encode = msgspec.json.Encoder(decimal_format="number").encode

    def __call__(self, value: bytes) -> bytes | Fault:
        """Return the line that a message means, or what is wrong with it; raises `BrokerAwayError`."""
        if len(value) <= _HEAD.size or value[0]:
            return malformed(f"{len(value)} bytes that start with {value[:1].hex()}; expected 00 and a schema's number")
        schema = self._registry.schema(_HEAD.unpack_from(value)[1])
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
        return self._line(found)

    def _without_others(self, content: BytesIO, schema: Any) -> Any:
        """Return the fields of a record of which others cannot be decoded, such as text that is no UTF-8; else None."""
        if not isinstance(schema, dict) or "fields" not in schema:
            return None
        fields = [field for field in schema["fields"] if field["name"] in self._read]
        narrow = {"type": "record", "name": schema["name"], "fields": fields}
        try:
            return schemaless_reader(content, schema, narrow)
        except (*_NO_RECORD, SchemaParseException, UnknownType):
            return None

    def _line(self, found: object) -> bytes | Fault:
        if isinstance(found, dict):
            # A line has no such numbers: they would become null.
            for name, reason in self._numbers.items():
                number = found.get(name)
                if isinstance(number, float) and not math.isfinite(number):
                    return Fault(reason, f"{name} is {number}; allowed are finite numbers")
        return self._encode(found)
