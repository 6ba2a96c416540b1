"""Parse dates and times of logs and catalogues, whole columns at a time.

A text is a date (year, month, day), optionally with a time of day and a zone::

    2026-03-01T08:00:41.123Z        2026-03-01 08:00:41,123 +0100       2026-03-01t08:00+01[Europe/Berlin]

A T or a blank separates date and time; a fraction of a second follows a point or a comma, and is cut off after six
digits. A zone is Z, UTC, GMT, or hours and minutes with or without a colon, with or without a blank before it; a name
in brackets may follow it. Letters may be lower case. Slashes may replace the hyphens, and all separators but the T may
be missing: 20260301T080041Z. Other formats, such as 03.04.2026, are ambiguous and refused.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts.interactions.arrow_columns import bytes_as_text, cast_or_none, is_bytes, is_string, spelled_numbers

__all__ = ["micros", "milliseconds", "plain_micros"]

_GRAMMAR: Final = (
    r"(?i)^(?P<date>\d{4}-\d{2}-\d{2})"
    r"(?:[T ](?P<clock>\d{2}(?::\d{2}(?::\d{2})?)?)(?:[.,](?P<fraction>\d{1,6})\d*)?"
    r"(?: ?(?P<zone>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)(?: UTC|\[[\w+/-]+\])?)?)?$"
)
_WITHOUT_HYPHENS: Final = {
    r"^(\d{4})/(\d{2})/(\d{2})": r"\1-\2-\3",
    r"^(\d{4})(\d{2})(\d{2})[Tt](\d{2})(\d{2})(\d{2})": r"\1-\2-\3T\4:\5:\6",
}
_LATEST: Final = 10**15
"""Largest absolute value of milliseconds since 1970: the year 33658."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_1: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def micros(texts: pa.Array, zone: str = "") -> pa.Array:
    """Return microseconds since 1970 (n,), null for a text that is no date.

    `zone` applies to texts without one; if it is empty, they are no dates.
    """
    found = plain_micros(texts, zone)
    return _by_grammar(texts, zone) if found is None else found


def plain_micros(texts: pa.Array, zone: str = "") -> pa.Array | None:
    """Return `micros` if Arrow itself reads all texts, which all have a zone or all lack one; else None."""
    if (found := _cast(texts, "")) is None and zone:
        found = _cast(texts, zone)
    return _cast(pc.replace_substring(texts, " UTC", "Z"), "") if found is None else found


def _by_grammar(texts: pa.Array, zone: str) -> pa.Array:
    """Parse texts that Arrow alone does not read completely."""
    spelled = pc.ascii_trim_whitespace(texts)
    for pattern, hyphened in _WITHOUT_HYPHENS.items():
        spelled = pc.replace_substring_regex(spelled, pattern, hyphened)
    parts = pc.extract_regex(spelled, _GRAMMAR)
    date, clock, fraction, own = (pc.struct_field(parts, name) for name in ("date", "clock", "fraction", "zone"))
    plain = pc.replace_substring_regex(pc.ascii_upper(own), "^(?:UTC|GMT)$", "Z")
    second = pc.if_else(pc.equal(fraction, ""), clock, pc.binary_join_element_wise(clock, fraction, "."))
    moment = pc.if_else(pc.equal(clock, ""), date, pc.binary_join_element_wise(date, second, "T"))
    is_zoned = pc.not_equal(plain, "")
    zoned = _each(pc.if_else(is_zoned, pc.binary_join_element_wise(moment, plain, ""), None), "")
    return pc.coalesce(zoned, _each(pc.if_else(is_zoned, None, moment), zone)) if zone else zoned


def _each(texts: pa.Array, zone: str) -> pa.Array:
    """Return microseconds of texts (n,) in Arrow's own formats, null for each text that is no date."""
    if (found := _cast(texts, zone)) is not None:
        return found
    # An impossible date makes Arrow refuse the whole column: read each distinct text alone.
    encoded = texts.dictionary_encode()
    words = [encoded.dictionary[place : place + 1] for place in range(len(encoded.dictionary))]
    dates = [_cast(word, zone) for word in words]
    known = [pa.nulls(1, pa.int64()) if date is None else date for date in dates]
    return pa.concat_arrays([pa.nulls(0, pa.int64()), *known]).take(encoded.indices)


def _cast(texts: pa.Array, zone: str) -> pa.Array | None:
    """Return the microseconds of dates that all have a zone, or with `zone` of dates that all lack one; else None."""
    moments = cast_or_none(texts, pa.timestamp("us") if zone else pa.timestamp("us", "UTC"))
    if moments is not None and zone:
        moments = pc.assume_timezone(moments, zone, ambiguous="earliest", nonexistent="earliest")
    return None if moments is None else moments.cast(pa.int64())


def milliseconds(times: pa.Array) -> tuple[pa.Array, Any]:
    """Return whole milliseconds since 1970 (n,), null for a null, and a mask (n,) of times that cannot be read.

    The meaning of a text does not depend on other texts: Arrow and Python agree on all texts that both read.
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
    """Parse texts that are dates, or numbers of milliseconds."""
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
    """Return milliseconds of numbers of any type, rounded down; numbers within `_LATEST` are exact as doubles."""
    missing = times.is_null().to_numpy(zero_copy_only=False)
    values = pc.fill_null(times.cast(pa.float64(), safe=False), 0.0).to_numpy(zero_copy_only=False)
    bad = ~(np.abs(values) <= _LATEST)
    return pa.array(np.floor(np.where(bad, 0.0, values)).astype(np.int64), mask=missing | bad), bad


def _whole(moments: pa.Array) -> pa.Array:
    """Return Arrow timestamps as milliseconds, rounded down."""
    floored = pc.floor_temporal(moments, unit="millisecond")
    return floored.cast(pa.timestamp("ms", moments.type.tz), safe=False).cast(pa.int64())


def _one_by_one(times: pa.Array) -> tuple[pa.Array, Any]:
    """Parse dates in the module's formats (UTC without a zone), or in another form of ISO 8601."""
    found = _whole(micros(times, "UTC").cast(pa.timestamp("us")))
    found = pc.if_else(pc.greater_equal(found, _YEAR_1), found, None)
    left = pc.and_(times.is_valid(), pc.is_null(found))
    others = [_of_iso(raw) for raw in pc.if_else(left, times, None).cast(pa.binary()).to_pylist()]
    dates = pc.coalesce(found, pa.array(others, pa.int64()))
    return dates, pc.and_(times.is_valid(), pc.is_null(dates)).to_numpy(zero_copy_only=False)


def _of_iso(raw: bytes | None) -> int | None:
    """Return the milliseconds of a text in ISO 8601 (UTC without a zone), None for any other text."""
    try:
        moment = datetime.fromisoformat((raw or b"").decode().replace("z", "Z"))
    except ValueError:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(milliseconds=1)
