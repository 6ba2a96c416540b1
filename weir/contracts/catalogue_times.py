"""Times of a catalogue: from when and until when an item is available, however a file writes them."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts.arrow_columns import bytes_as_text, is_bytes, is_string, spelled_numbers
from weir.contracts.dates import micros

__all__ = ["milliseconds"]

_LATEST: Final = 10**15
"""Milliseconds since 1970 that a number may mean: until the year 33658."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_1: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def milliseconds(times: pa.Array) -> tuple[pa.Array, Any]:
    """Return times as whole milliseconds since 1970, null where there is none, and which cannot be read.

    What a text means depends on no other one: Arrow and Python read alike what both of them read.
    """
    none = np.zeros(len(times), np.bool_)
    kind = times.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _whole(times.cast(pa.timestamp("ms")) if pa.types.is_date(kind) else times), none
    if times.null_count == len(times):
        return pa.nulls(len(times), pa.int64()), none
    if is_string(kind) or is_bytes(kind):
        return _texts(bytes_as_text(times.cast(pa.binary()) if is_string(kind) else times))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _numbers(times)
    return pa.nulls(len(times), pa.int64()), times.is_valid().to_numpy(zero_copy_only=False)


def _texts(times: pa.Array) -> tuple[pa.Array, Any]:
    """Read texts: dates, or the milliseconds that they spell."""
    try:
        found = _whole(times.cast(pa.timestamp("us", "UTC")))
    except pa.ArrowException:
        pass
    else:
        # Arrow has a year 0, Python has none.
        if pc.min(found).as_py() >= _YEAR_1:
            return found, np.zeros(len(times), np.bool_)
    numbers, is_date = spelled_numbers(times)
    millis, bad = _numbers(numbers)
    dates, undated = _one_by_one(pc.if_else(pa.array(is_date), times, None))
    return pc.coalesce(millis, dates), bad | undated


def _numbers(times: pa.Array) -> tuple[pa.Array, Any]:
    """Read milliseconds, which some program may have made floats or decimals of; those within bounds are exact."""
    missing = times.is_null().to_numpy(zero_copy_only=False)
    values = pc.fill_null(times.cast(pa.float64(), safe=False), 0.0).to_numpy(zero_copy_only=False)
    bad = ~(np.abs(values) <= _LATEST)
    return pa.array(np.floor(np.where(bad, 0.0, values)).astype(np.int64), mask=missing | bad), bad


def _whole(moments: pa.Array) -> pa.Array:
    floored = pc.floor_temporal(moments, unit="millisecond")
    return floored.cast(pa.timestamp("ms", moments.type.tz), safe=False).cast(pa.int64())


def _one_by_one(times: pa.Array) -> tuple[pa.Array, Any]:
    """Read dates as logs spell them (UTC without a zone), or in another form of ISO 8601."""
    found = _whole(micros(times, "UTC").cast(pa.timestamp("us")))
    found = pc.if_else(pc.greater_equal(found, _YEAR_1), found, None)
    left = pc.and_(times.is_valid(), pc.is_null(found))
    others = [_of_iso(raw) for raw in pc.if_else(left, times, None).cast(pa.binary()).to_pylist()]
    dates = pc.coalesce(found, pa.array(others, pa.int64()))
    return dates, pc.and_(times.is_valid(), pc.is_null(dates)).to_numpy(zero_copy_only=False)


def _of_iso(raw: bytes | None) -> int | None:
    try:
        moment = datetime.fromisoformat((raw or b"").decode().replace("z", "Z"))
    except ValueError:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(milliseconds=1)
