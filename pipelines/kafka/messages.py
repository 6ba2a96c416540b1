"""Values of messages to JSON lines, so that one decoder and one rule judge the rows of all logs."""

import math
from collections.abc import Callable
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from weir.log.v1.interaction_pb2 import Interaction
from weir.pipelines.config import PipelineConfig
from weir.readers import Fault, LogColumns, Reason

__all__ = ["ToLine", "line_of_protobuf", "to_line"]

ToLine = Callable[[bytes], bytes | Fault]
"""The line that a value means, or what is wrong with it."""


def to_line(config: PipelineConfig) -> ToLine | None:
    """Return what turns values into lines; None where they are lines."""
    if config.kafka.format == "avro":
        from weir.pipelines.kafka.avro import AvroLines  # noqa: PLC0415 - fastavro and the registry's client are an extra

        return AvroLines(config)
    return None if config.kafka.format == "json" else line_of_protobuf(config.columns)


def line_of_protobuf(names: LogColumns) -> ToLine:
    """Return what spells `weir.log.v1.Interaction` as a line whose fields have these names."""
    fields = {
        "user_id": names.user_id,
        "item_id": names.item_id,
        "timestamp_ms": names.timestamp,
        "event_id": names.event_id,
        "event_type": names.event_type,
        "weight": names.weight,
        "attribution_token": names.attribution_token,
    }
    encode = msgspec.json.Encoder().encode

    def line(value: bytes) -> bytes | Fault:
        try:
            message = Interaction.FromString(value)
        except DecodeError as error:
            return Fault(Reason.MALFORMED_PROTOBUF, f"expected a weir.log.v1.Interaction: {error}")
        if not math.isfinite(message.weight):
            detail = f"{names.weight} is {message.weight}; allowed are finite numbers from 0"
            return Fault(Reason.NON_FINITE_WEIGHT, detail)
        found: dict[str, Any] = {fields[field.name]: given for field, given in message.ListFields()}
        return encode(found)

    return line
