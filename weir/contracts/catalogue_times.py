"""Times of a catalogue: from when and until when an item is available, however a file writes them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["milliseconds"]

_EARLIEST: Final = -(10**15)
_LATEST: Final = 10**15
"""Milliseconds since 1970 that an integer may mean: until the year 33658."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,30}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_1: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def milliseconds(times: pa.Array) -> tuple[pa.Array, Any]:
    """Return times as whole milliseconds since 1970, null where there is none, and which cannot be read.

    What a text means depends on no other one: all are read by Arrow, or each by Python, and both read it alike.
    """
    none = np.zeros(len(times), np.bool_)
    kind = times.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _whole(times.cast(pa.timestamp("ms")) if pa.types.is_date(kind) else times), none
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return times.cast(pa.int64()), none
    if pa.types.is_floating(kind):
        return _numbers(times)
    if times.null_count == len(times):
        return pa.nulls(len(times), pa.int64()), none
    try:
        found = _whole(times.cast(pa.timestamp("us", "UTC")))
    except pa.ArrowException:
        return _one_by_one(times.to_pylist())
    # Arrow has a year 0, Python has none.
    return (found, none) if pc.min(found).as_py() >= _YEAR_1 else _one_by_one(times.to_pylist())


def _numbers(times: pa.Array) -> tuple[pa.Array, Any]:
    """Read integers that some program has made floats of because others are missing."""
    missing = times.is_null().to_numpy(zero_copy_only=False)
    values = pc.fill_null(times.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    bad = ~(np.abs(values) <= _LATEST)
    return pa.array(np.floor(np.where(bad, 0.0, values)).astype(np.int64), mask=missing | bad), bad


def _whole(moments: pa.Array) -> pa.Array:
    floored = pc.floor_temporal(moments, unit="millisecond")
    return floored.cast(pa.timestamp("ms", moments.type.tz), safe=False).cast(pa.int64())


def _one_by_one(times: list[Any]) -> tuple[pa.Array, Any]:
    found: list[int | None] = []
    bad = np.zeros(len(times), np.bool_)
    for place, text in enumerate(times):
        value = None if text is None else _read_time(text)
        bad[place] = text is not None and value is None
        found.append(value)
    return pa.array(found, pa.int64()), bad


def _read_time(text: Any) -> int | None:
    """Return a time of RFC 3339 (UTC without an offset), a date or milliseconds as milliseconds; None: it is none."""
    if not isinstance(text, str):
        return None
    if _INTEGER.fullmatch(text):
        value = int(text)
        return value if _EARLIEST <= value <= _LATEST else None
    try:
        moment = datetime.fromisoformat(text.replace("z", "Z"))
    except ValueError:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(milliseconds=1)
