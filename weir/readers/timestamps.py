"""Convert event times of any spelling to milliseconds since 1970 (UTC), whole columns at a time."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts.interactions.arrow_columns import bytes_as_text, cast_or_none, is_bytes, is_string
from weir.contracts.interactions.times import micros, plain_micros
from weir.readers.config import TimestampUnit

__all__ = ["BEYOND", "arrow_millis", "mixed_millis"]

Millis: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]
"""Milliseconds (n,), and a mask of readable values (n,)."""

BEYOND: Final = np.iinfo(np.int64).max
"""Stands for a time beyond 64 bits of milliseconds: no setting makes it valid, and it is never shown."""

_LARGEST: Final = 2**63 - 1024
"""The largest number that is exact both as an integer of 64 bits and as a double."""
_LARGEST_SECONDS: Final = 2**53
"""Its product with 1000 fits into 64 bits."""

_AUTO: Final = (("s", 10**11), ("ms", 10**14), ("us", 10**17), ("ns", 10**19))
"""Unit -> the number from which on `auto` takes the next, finer unit."""
_PER_MILLISECOND: Final = {"ms": 1, "us": 1000, "ns": 1_000_000}

_INTEGER: Final = r"^-?\d+$"
_NUMBER: Final = r"^-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def mixed_millis(values: Sequence[int | float | str | None], unit: TimestampUnit, zone: str = "") -> Millis:
    """Convert the timestamps (n,) of JSON lines, whose types may differ, as `arrow_millis` does for one type."""
    with suppress(pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return arrow_millis(pa.array(values), unit, zone)
    millis, readable = np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)
    for kind in {*map(_kind, values)}:
        rows = [row for row, value in enumerate(values) if _kind(value) == kind]
        if kind == "beyond":
            millis[rows], readable[rows] = BEYOND, unit != "rfc3339"
        else:
            millis[rows], readable[rows] = arrow_millis(pa.array([values[row] for row in rows]), unit, zone)
    return millis, readable


def _kind(value: Any) -> str:
    return "beyond" if isinstance(value, int) and abs(value) > _LARGEST else type(value).__name__


def arrow_millis(values: pa.Array, unit: TimestampUnit, zone: str = "") -> Millis:
    """Convert a column (n,) of numbers, texts, bytes of text, or timestamps; nulls are unreadable.

    `zone` applies to texts without one; if it is empty, these are unreadable. Raises `TypeError` for other types.
    """
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _stamps(values)
    if is_string(kind):
        return _strings(values.cast(pa.string()), unit, zone)
    if is_bytes(kind):
        return _strings(bytes_as_text(values), unit, zone)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _numbers(values, unit)
    if pa.types.is_decimal(kind):
        return _decimals(values, unit)
    if pa.types.is_null(kind):
        return np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)
    raise TypeError(f"is of type {kind}; allowed are integers, decimals, floats, texts and timestamps")


def _stamps(values: pa.Array) -> Millis:
    # Arrow's own conversion to a finer unit overflows silently.
    kind = values.type
    if pa.types.is_date32(kind):
        return _numbers(pc.multiply(values.cast(pa.int32()).cast(pa.int64()), 86_400), "s")
    return _numbers(values.cast(pa.int64()), "ms" if pa.types.is_date64(kind) else kind.unit)


def _decimals(values: pa.Array, unit: TimestampUnit) -> Millis:
    """Convert decimals: whole numbers exactly, others as the nearest doubles."""
    numbers = values.cast(pa.float64())
    is_beyond = pc.greater(pc.abs(numbers), float(_LARGEST))
    if values.type.scale > 0:
        return _numbers(numbers, unit)
    whole = pc.if_else(is_beyond, None, values).cast(pa.decimal128(38, 0)).cast(pa.int64())
    return _integers(whole, is_beyond, unit)


def _integers(whole: pa.Array, is_beyond: pa.Array, unit: TimestampUnit) -> Millis:
    """Convert integers (n,), which are null where `is_beyond` marks a value beyond 64 bits."""
    millis, readable = _numbers(whole, unit)
    beyond = pc.fill_null(is_beyond, fill_value=False).to_numpy(zero_copy_only=False)
    return np.where(beyond, BEYOND, millis), readable | (beyond & (unit != "rfc3339"))


def _numbers(values: pa.Array, unit: TimestampUnit) -> Millis:
    """Convert integers or floats (n,) of a unit; nulls and NaN are unreadable."""
    readable = pc.is_valid(values).to_numpy(zero_copy_only=False)
    numbers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    if numbers.dtype.kind == "f":
        numbers = numbers.astype(np.float64)
        readable &= np.isfinite(numbers)
        numbers = np.where(readable, numbers, 0.0)
    if unit == "rfc3339":
        readable = np.zeros_like(readable)
    limit = _LARGEST_SECONDS if unit == "s" else _LARGEST
    meant = (numbers < limit) & (numbers > -limit) if numbers.dtype != np.uint64 else numbers < np.uint64(limit)
    if meant.all():
        return _in_millis(_wide(numbers), unit), readable
    return np.where(meant, _in_millis(_wide(np.where(meant, numbers, 0)), unit), BEYOND), readable


def _wide(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return numbers if numbers.dtype.kind == "f" else numbers.astype(np.int64, copy=False)


def _in_millis(numbers: npt.NDArray[Any], unit: TimestampUnit) -> npt.NDArray[np.int64]:
    """Return milliseconds of numbers (n,); with unit "auto", the size of each number decides its unit."""
    if unit != "auto":
        return _scaled(numbers, unit)
    size = np.abs(numbers)
    least, most = (size.min(), size.max()) if len(size) else (0, 0)
    millis = np.zeros(len(numbers), np.int64)
    start = 0
    for one, stop in _AUTO:
        if start <= least and most < stop:
            return _scaled(numbers, one)
        rows = (size >= start) & (size < stop)
        millis[rows] = _scaled(numbers[rows], one)
        start = stop
    return millis


def _scaled(numbers: npt.NDArray[Any], unit: str) -> npt.NDArray[np.int64]:
    """Return milliseconds, rounded down from finer units."""
    divisor = _PER_MILLISECOND.get(unit)
    millis = numbers * 1000 if divisor is None else numbers if divisor == 1 else numbers // divisor
    scaled: npt.NDArray[np.int64] = np.rint(millis).astype(np.int64) if millis.dtype.kind == "f" else millis
    return scaled


def _strings(values: pa.Array, unit: TimestampUnit, zone: str) -> Millis:
    """Convert texts: numeric texts as numbers, all others as dates."""
    if unit == "rfc3339":
        return _numbers(micros(values, zone), "us")
    whole = cast_or_none(values, pa.int64())
    # Arrow reads 0x10 as a number.
    if whole is not None and not pc.any(pc.match_substring(values, "x", ignore_case=True)).as_py():
        return _numbers(whole, unit)
    if unit == "auto" and (found := plain_micros(values, zone)) is not None:
        return _numbers(found, "us")
    spelled = pc.ascii_trim_whitespace(values)
    is_integer, is_number = (
        pc.fill_null(pc.match_substring_regex(spelled, pattern), fill_value=False) for pattern in (_INTEGER, _NUMBER)
    )
    millis, readable = _spelled_numbers(spelled, is_integer, is_number, unit)
    if unit != "auto" or pc.all(is_number).as_py():
        return millis, readable
    numeric = is_number.to_numpy(zero_copy_only=False)
    dates, found = _numbers(micros(pc.if_else(is_number, None, spelled), zone), "us")
    return np.where(numeric, millis, dates), np.where(numeric, readable, found)


def _spelled_numbers(values: pa.Array, is_integer: pa.Array, is_number: pa.Array, unit: TimestampUnit) -> Millis:
    numbers = pc.if_else(is_number, values, None).cast(pa.float64())
    millis, readable = _numbers(pc.if_else(is_integer, None, numbers), unit)
    is_beyond = pc.greater(pc.abs(numbers), float(_LARGEST))
    whole = pc.if_else(pc.and_(is_integer, pc.invert(pc.fill_null(is_beyond, fill_value=False))), values, None)
    exact, read = _integers(whole.cast(pa.int64()), pc.and_(is_integer, is_beyond), unit)
    integers = is_integer.to_numpy(zero_copy_only=False)
    return np.where(integers, exact, millis), np.where(integers, read, readable)
