"""Event times of any spelling to milliseconds since 1970 (UTC), whole columns at a time."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts.arrow_columns import is_string
from weir.readers.config import TimestampUnit

__all__ = ["arrow_millis", "mixed_millis"]

Millis: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]
"""Milliseconds (n,), and which of them could be read (n,)."""

_EXACT = 2**53
"""Beyond it no time is meant, whatever the unit, and a product with 1000 would no longer fit."""
_NUMBER = r"^-?\d+(\.\d+)?$"
_OUT_OF_RANGE = np.iinfo(np.int64).max
_Zoned = Annotated[datetime, msgspec.Meta(tz=True)]


def mixed_millis(values: Sequence[int | float | str], unit: TimestampUnit, zone: str = "") -> Millis:
    """Convert the timestamps of JSON lines, whose type may change from line to line; for `zone` see `arrow_millis`."""
    kinds = set(map(type, values))
    if len(kinds) == 1:
        return arrow_millis(_column(values), unit, zone)
    millis, readable = np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)
    for kind in kinds:
        rows = [row for row, value in enumerate(values) if type(value) is kind]
        millis[rows], readable[rows] = arrow_millis(_column([values[row] for row in rows]), unit, zone)
    return millis, readable


def _column(values: Sequence[int | float | str]) -> pa.Array:
    try:
        return pa.array(values)
    except (OverflowError, pa.ArrowInvalid):
        # Integers that no 64 bits hold: any value that is out of range will do in their place.
        return pa.array([max(min(value, _OUT_OF_RANGE), -_OUT_OF_RANGE) for value in values])


def arrow_millis(values: pa.Array, unit: TimestampUnit, zone: str = "") -> Millis:
    """Convert a column of integers, floats, strings or timestamps; nulls come out unreadable.

    `zone` is that of strings without one, which are unreadable if it is empty. Raises `TypeError` for a column that is
    none of these.
    """
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _stamps(values)
    if is_string(kind):
        return _strings(values.cast(pa.string()), unit, zone)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _numbers(values, unit)
    if pa.types.is_null(kind):
        return np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)
    raise TypeError(f"is of type {kind}; allowed are integers, floats, strings and timestamps")


def _stamps(values: pa.Array) -> Millis:
    # Arrow's own conversion to a finer unit wraps around in silence.
    kind = values.type
    if pa.types.is_date32(kind):
        return _numbers(pc.multiply(values.cast(pa.int32()).cast(pa.int64()), 86_400), "s")
    numbers = values.cast(pa.int64())
    if pa.types.is_date64(kind):
        return _numbers(numbers, "ms")
    return _numbers(pc.divide(numbers, 1000), "us") if kind.unit == "ns" else _numbers(numbers, kind.unit)


def _numbers(values: pa.Array, unit: TimestampUnit) -> Millis:
    readable = pc.is_valid(values).to_numpy(zero_copy_only=False)
    numbers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    if numbers.dtype.kind == "f":
        numbers = numbers.astype(np.float64)
        readable &= np.isfinite(numbers)
        numbers = np.where(readable, numbers, 0.0)
    if unit == "rfc3339":
        readable = np.zeros_like(readable)
    meant = (numbers < _EXACT) & (numbers > -_EXACT)
    return np.where(meant, _scaled(np.where(meant, numbers, 0), unit), _OUT_OF_RANGE), readable


def _scaled(numbers: npt.NDArray[np.int64] | npt.NDArray[np.float64], unit: TimestampUnit) -> npt.NDArray[np.int64]:
    numbers = numbers.astype(np.float64) if numbers.dtype.kind == "f" else numbers.astype(np.int64)
    size = np.abs(numbers)
    seconds = size < 1e11 if unit == "auto" else np.full(len(numbers), unit == "s")
    micros = size >= 1e14 if unit == "auto" else np.full(len(numbers), unit == "us")
    millis = np.where(seconds, numbers * 1000, np.where(micros, numbers // 1000, numbers))
    scaled: npt.NDArray[np.int64] = np.rint(millis).astype(np.int64)
    return scaled


def _strings(values: pa.Array, unit: TimestampUnit, zone: str) -> Millis:
    """Convert texts: decimal numbers as the numbers that they spell, all others as dates."""
    if unit == "rfc3339":
        return _numbers(_dates(values, zone), "us")
    spells_number = pc.fill_null(pc.match_substring_regex(values, _NUMBER), fill_value=False)
    millis, readable = _numbers(pc.if_else(spells_number, values, None).cast(pa.float64()), unit)
    if unit != "auto" or pc.all(spells_number).as_py():
        return millis, readable
    is_number = spells_number.to_numpy(zero_copy_only=False)
    dates, found = _numbers(_dates(pc.if_else(spells_number, None, values), zone), "us")
    return np.where(is_number, millis, dates), np.where(is_number, readable, found)


def _dates(values: pa.Array, zone: str) -> pa.Array:
    """Return the microseconds of dates (n,); null where one cannot be read."""
    for spelled in (values, pc.replace_substring(values, " UTC", "Z")):
        for own_zone in (True, False) if zone else (True,):
            with suppress(pa.ArrowInvalid):
                return _cast(spelled, "" if own_zone else zone)
    # One unusual spelling makes Arrow refuse the column: read each distinct value by itself.
    encoded = values.dictionary_encode()
    # Parquet does not promise that text is UTF-8.
    texts = encoded.dictionary.cast(pa.large_binary()).to_pylist()
    return pa.array([_micros(text, zone) for text in texts], pa.int64()).take(encoded.indices)


def _cast(values: pa.Array | pa.Scalar, zone: str) -> pa.Array:
    """Return the microseconds of dates that name their zone, or with `zone` of dates that name none."""
    if not zone:
        return values.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    naive = values.cast(pa.timestamp("us"))
    return pc.assume_timezone(naive, zone, ambiguous="earliest", nonexistent="earliest").cast(pa.int64())


def _micros(raw: bytes, zone: str) -> int | None:
    try:
        text = raw.decode().replace(" UTC", "Z")
    except UnicodeDecodeError:
        return None
    with suppress(msgspec.ValidationError, ValueError, OverflowError):
        return round(msgspec.convert(text, _Zoned).timestamp() * 1_000_000)
    for one in ("", zone) if zone else ("",):
        with suppress(pa.ArrowInvalid):
            found: int = _cast(pa.scalar(text), one).as_py()
            return found
    return None
