"""Dates and times that texts spell, as logs and catalogues write them, to moments; whole columns at a time.

A text is a date of four, two and two digits, and may go on with a time of the day and its zone::

    2026-03-01T08:00:41.123Z        2026-03-01 08:00:41,123 +0100       2026-03-01t08:00+01[Europe/Berlin]

Between date and time stands a T or a blank; a fraction of a second follows a point or a comma, and its digits beyond
the sixth are cut off. A zone is Z, UTC, GMT or hours and minutes, with or without a colon, with or without a blank
before it; a name in brackets may follow it. Letters may be small. What else texts spell, such as 03.04.2026, may mean
two days, and is no date.
"""

from contextlib import suppress
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["micros"]

_GRAMMAR: Final = (
    r"(?i)^(?P<date>\d{4}-\d{2}-\d{2})"
    r"(?:[T ](?P<clock>\d{2}(?::\d{2}(?::\d{2})?)?)(?:[.,](?P<fraction>\d{1,6})\d*)?"
    r"(?: ?(?P<zone>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)(?: UTC|\[[\w+/-]+\])?)?)?$"
)


def micros(texts: pa.Array, zone: str = "") -> pa.Array:
    """Return microseconds since 1970 (n,), null where a text is no date.

    `zone` is that of texts without one; if it is empty, they are no dates.
    """
    for spelled in (texts, pc.replace_substring(texts, " UTC", "Z")):
        for own_zone in (True, False) if zone else (True,):
            with suppress(pa.ArrowInvalid):
                return _cast(spelled, "" if own_zone else zone)
    return _by_grammar(texts, zone)


def _by_grammar(texts: pa.Array, zone: str) -> pa.Array:
    """Read texts of which at least one is no date as Arrow spells them."""
    parts = pc.extract_regex(pc.ascii_trim_whitespace(texts), _GRAMMAR)
    date, clock, fraction, own = (pc.struct_field(parts, name) for name in ("date", "clock", "fraction", "zone"))
    plain = pc.replace_substring_regex(pc.ascii_upper(own), "^(?:UTC|GMT)$", "Z")
    second = pc.if_else(pc.equal(fraction, ""), clock, pc.binary_join_element_wise(clock, fraction, "."))
    moment = pc.if_else(pc.equal(clock, ""), date, pc.binary_join_element_wise(date, second, "T"))
    is_zoned = pc.not_equal(plain, "")
    zoned = _each(pc.if_else(is_zoned, pc.binary_join_element_wise(moment, plain, ""), None), "")
    return pc.coalesce(zoned, _each(pc.if_else(is_zoned, None, moment), zone)) if zone else zoned


def _each(texts: pa.Array, zone: str) -> pa.Array:
    with suppress(pa.ArrowInvalid):
        return _cast(texts, zone)
    # The 30th of February makes Arrow refuse the column: read each distinct text by itself.
    encoded = texts.dictionary_encode()
    return pa.array([_one(text, zone) for text in encoded.dictionary], pa.int64()).take(encoded.indices)


def _one(text: pa.Scalar, zone: str) -> int | None:
    with suppress(pa.ArrowInvalid):
        found: int = _cast(text, zone).as_py()
        return found
    return None


def _cast(texts: pa.Array | pa.Scalar, zone: str) -> pa.Array:
    """Return the microseconds of dates that name their zone, or with `zone` of dates that name none."""
    if not zone:
        return texts.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    naive = texts.cast(pa.timestamp("us"))
    return pc.assume_timezone(naive, zone, ambiguous="earliest", nonexistent="earliest").cast(pa.int64())
