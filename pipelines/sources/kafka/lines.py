"""Convert messages of any format to JSON lines, so that one decoder validates the rows of all logs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from confluent_kafka import Message
from google.protobuf.message import DecodeError

from weir.contracts import EventClock
from weir.log.v1.interaction_pb2 import Interaction
from weir.pipelines.config import PipelineConfig
from weir.readers import Fault, Int64, Lines, LogColumns, Reason

__all__ = ["MessageLines", "Taken", "ToLine", "latest_event_times", "line_of_protobuf", "to_line"]


ToLine = Callable[[bytes], bytes | Fault]
"""Converts a message value to a line or a fault."""


def to_line(config: PipelineConfig) -> ToLine | None:
    """Return the converter of message values; None if values are lines already."""
    if config.kafka.format == "avro":
        from weir.pipelines.sources.kafka.avro import AvroLines  # noqa: PLC0415 - fastavro and the registry's client are an extra

        return AvroLines(config)
    return None if config.kafka.format == "json" else line_of_protobuf(config.columns)


def line_of_protobuf(names: LogColumns) -> ToLine:
    """Return a converter of `weir.log.v1.Interaction` to lines with these field names."""
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


_NO_LIMIT: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Taken:
    """Messages of one partition: the values as `lines`, and the offsets of messages without a value.

    `arrived_ms` is the event time at which the newest message arrived; None if no message has a timestamp.
    """

    lines: Lines
    valueless: Int64
    arrived_ms: int | None


class MessageLines:
    """Converts messages of a topic to lines, with the settings and the clock of a store."""

    def __init__(self, config: PipelineConfig, clock: EventClock) -> None:
        self._to_line = to_line(config)
        self._clock, self._tolerance = clock, config.clock_tolerance_minutes

    def take(self, messages: list[Message]) -> Taken:
        """Return the values and arrival times of error-free messages, which are in order of offsets."""
        offsets: Int64 = np.array([message.offset() for message in messages], np.int64)
        values = [message.value() or b"" for message in messages]
        stamps = np.array([message.timestamp()[1] for message in messages], np.int64)
        latest = latest_event_times(stamps, self._clock, self._tolerance)
        kept = np.array([bool(value) and not value.isspace() for value in values], np.bool_)
        lines = [value for value, keep in zip(values, kept, strict=True) if keep]
        stamped = latest[stamps >= 0]
        arrived = int(stamped.max()) - _milliseconds(self._tolerance) if len(stamped) else None
        return Taken(Lines(lines, offsets[kept], latest[kept]), offsets[~kept], arrived)

    def spelled(self, values: Lines) -> tuple[Lines, tuple[tuple[int, Fault, bytes], ...]]:
        """Convert values to lines; return the lines, and (position, fault, value) of the values that fail."""
        if self._to_line is None:
            return values, ()
        found = [self._to_line(value) for value in values.lines]
        good = np.array([not isinstance(one, Fault) for one in found], np.bool_)
        lines = [one for one in found if not isinstance(one, Fault)]
        latest = None if values.latest_ms is None else values.latest_ms[good]
        faults = (
            (position, one, value)
            for position, one, value in zip(values.positions.tolist(), found, values.lines, strict=True)
            if isinstance(one, Fault)
        )
        return Lines(lines, values.positions[good], latest), tuple(faults)


def latest_event_times(stamps: Int64, clock: EventClock, tolerance_minutes: float) -> Int64:
    """Return the newest plausible event time (ms) of messages with these timestamps (ms, n); shape (n,).

    As for files (`weir.readers.timestamps`): the arrival in event time plus the clock tolerance, in whole seconds,
    rounded up. A message without a timestamp has no bound.
    """
    seconds, place = np.unique(stamps // 1000 + 1, return_inverse=True)
    arrived = (max(float(second), clock.wall_origin) for second in seconds.tolist())
    latest = np.array([clock.event_ms(second) for second in arrived], np.int64) + _milliseconds(tolerance_minutes)
    found: Int64 = np.where(stamps < 0, _NO_LIMIT, latest[place])
    return found


def _milliseconds(minutes: float) -> int:
    return round(60_000 * minutes)
