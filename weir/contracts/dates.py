"""Dates and times that texts spell, as logs and catalogues write them, to moments; whole columns at a time.

A text is a date of four, two and two digits, and may go on with a time of the day and its zone::

    2026-03-01T08:00:41.123Z        2026-03-01 08:00:41,123 +0100       2026-03-01t08:00+01[Europe/Berlin]

Between date and time stands a T or a blank; a fraction of a second follows a point or a comma, and its digits beyond
the sixth are cut off. A zone is Z, UTC, GMT or hours and minutes, with or without a colon, with or without a blank
before it; a name in brackets may follow it. Letters may be small. Slashes may stand for the hyphens, and all that
stands between numbers may be left out but the T: 20260301T080041Z. What else texts spell, such as 03.04.2026, may mean
two days, and is no date.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts.arrow_columns import cast_or_none

__all__ = ["micros", "plain_micros"]

_GRAMMAR: Final = (
    r"(?i)^(?P<date>\d{4}-\d{2}-\d{2})"
    r"(?:[T ](?P<clock>\d{2}(?::\d{2}(?::\d{2})?)?)(?:[.,](?P<fraction>\d{1,6})\d*)?"
    r"(?: ?(?P<zone>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)(?: UTC|\[[\w+/-]+\])?)?)?$"
)
_WITHOUT_HYPHENS: Final = {
    r"^(\d{4})/(\d{2})/(\d{2})": r"\1-\2-\3",
    r"^(\d{4})(\d{2})(\d{2})[Tt](\d{2})(\d{2})(\d{2})": r"\1-\2-\3T\4:\5:\6",
}


def micros(texts: pa.Array, zone: str = "") -> pa.Array:
    """Return microseconds since 1970 (n,), null where a text is no date.

    `zone` is that of texts without one; if it is empty, they are no dates.
    """
    found = plain_micros(texts, zone)
    return _by_grammar(texts, zone) if found is None else found


def plain_micros(texts: pa.Array, zone: str = "") -> pa.Array | None:
    """Return the same where Arrow itself reads all texts as dates, and with one way to name the zone; else None."""
    if (found := _cast(texts, "")) is None and zone:
        found = _cast(texts, zone)
    return _cast(pc.replace_substring(texts, " UTC", "Z"), "") if found is None else found


def _by_grammar(texts: pa.Array, zone: str) -> pa.Array:
    """Read texts that Arrow alone does not read: at least one is no date in its spelling."""
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
    if (found := _cast(texts, zone)) is not None:
        return found
    # The 30th of February makes Arrow refuse the column: read each distinct text by itself.
    encoded = texts.dictionary_encode()
    words = [encoded.dictionary[place : place + 1] for place in range(len(encoded.dictionary))]
    dates = [_cast(word, zone) for word in words]
    known = [pa.nulls(1, pa.int64()) if date is None else date for date in dates]
    return pa.concat_arrays([pa.nulls(0, pa.int64()), *known]).take(encoded.indices)


def _cast(texts: pa.Array, zone: str) -> pa.Array | None:
    """Return the microseconds of dates that name their zone, or with `zone` of dates that name none.

    None: one of them is no such date.
    """
    moments = cast_or_none(texts, pa.timestamp("us") if zone else pa.timestamp("us", "UTC"))
    if moments is not None and zone:
        moments = pc.assume_timezone(moments, zone, ambiguous="earliest", nonexistent="earliest")
    return None if moments is None else moments.cast(pa.int64())
