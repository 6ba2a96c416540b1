from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.readers.timestamps import BEYOND, arrow_millis, mixed_millis

# Nanoseconds below 1e17, and microseconds below 1e14, would be taken for larger units: before 1973.
moments = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC))


def millis_of(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@given(st.lists(st.tuples(moments, st.sampled_from(["s", "ms", "us", "ns", "text", "offset"])), max_size=6))
def test_auto_reads_every_spelling_of_a_time(cases: list[tuple[datetime, str]]) -> None:
    values, expected = [], []
    for moment, kind in cases:
        millis = millis_of(moment)
        micros = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        east = moment.astimezone(timezone(timedelta(hours=5, minutes=30)))
        spelled = {
            "s": millis // 1000,
            "ms": millis,
            "us": micros,
            "ns": 1000 * micros,
            "text": moment.isoformat(),
            "offset": east.isoformat(),
        }
        values.append(spelled[kind])
        expected.append(millis // 1000 * 1000 if kind == "s" else millis)
    found, readable = mixed_millis(values, "auto")
    assert found.tolist() == expected
    assert readable.all()


def test_fractions_of_seconds_and_unusual_strings() -> None:
    values = [1_700_000_000.123, "2023-11-14t22:13:20.123z", "2023-11-14T22:13:20.1234567Z", "2023-11-14T22:13:20,5Z"]
    found, readable = mixed_millis(values, "auto")
    assert readable.all()
    assert found.tolist() == [1_700_000_000_123] * 3 + [1_700_000_000_500]


@pytest.mark.parametrize(("unit", "factor"), [("s", 1000), ("ms", 1), ("us", 0.001), ("ns", 1e-6)])
def test_a_fixed_unit_is_not_guessed(unit: str, factor: float) -> None:
    found, readable = mixed_millis([5_000_000, 1_700_000_000_000], unit)
    assert found.tolist() == [int(5_000_000 * factor), int(1_700_000_000_000 * factor)]
    assert readable.all()
    assert not mixed_millis(["2023-11-14T22:13:20Z"], unit)[1].any()


def test_rfc3339_refuses_numbers() -> None:
    assert mixed_millis([1_700_000_000, "2023-11-14T22:13:20Z"], "rfc3339")[1].tolist() == [False, True]


def test_arrow_times_and_nulls() -> None:
    moment = datetime(2023, 11, 14, 22, 13, 20, 123000)
    for kind in (pa.timestamp("ns"), pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("us")):
        aware = moment.replace(tzinfo=UTC) if kind.tz else moment
        found, readable = arrow_millis(pa.array([aware, None], kind), "auto")
        assert (found[0], readable.tolist()) == (1_700_000_000_123, [True, False])
    with pytest.raises(TypeError, match="list"):
        arrow_millis(pa.array([[1]]), "auto")


@given(st.lists(st.integers(-(2**70), 2**70) | st.sampled_from(["2023-11-14T22:13:20Z", "soon"]), max_size=8))
def test_texts_that_spell_numbers_are_read_as_those_numbers(values: list[int | str]) -> None:
    texts, numbers = (arrow_millis(pa.array([str(one) for one in values], pa.string()), "auto"), values)
    expected = mixed_millis(numbers, "auto")
    assert texts[0].tolist() == expected[0].tolist()
    assert texts[1].tolist() == expected[1].tolist()


SPELLINGS = [
    "2023-11-14 22:13:20",
    "2023-11-14T22:13:20.5",
    "2023-11-14 22:13",
    "2023-11-14",
    "2023-11-14 22:13:20 UTC",
]


@given(st.lists(st.sampled_from([*SPELLINGS, "2023-11-14T22:13:20+01:00", "soon"]), min_size=1, max_size=6))
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_a_zone_is_that_of_texts_without_one_whatever_stands_beside_them(zone: str, texts: list[str]) -> None:
    found, readable = arrow_millis(pa.array(texts), "auto", zone)
    for text, millis, is_read in zip(texts, found.tolist(), readable.tolist(), strict=True):
        assert is_read == (text != "soon")
        if is_read:
            moment = datetime.fromisoformat(text.replace(" UTC", "+00:00"))
            assert millis == millis_of(moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone)))


def test_without_a_zone_texts_must_name_theirs() -> None:
    found, readable = arrow_millis(pa.array(SPELLINGS), "auto")
    assert readable.tolist() == [False, False, False, False, True]
    assert found[4] == 1_700_000_000_000


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_texts_may_be_of_any_type_of_strings(kind: pa.DataType) -> None:
    found, readable = arrow_millis(pa.array(["1700000000", "2023-11-14T22:13:20Z", "soon", None], kind), "auto")
    assert found[readable].tolist() == [1_700_000_000_000] * 2
    assert readable.tolist() == [True, True, False, False]


numbers = st.integers(-(2**64), 2**64) | st.sampled_from(
    [2**63, 2**63 - 1, -(2**63), 10**17, 10**17 - 1, 10**14, 10**11]
)


def exactly(number: int, unit: str) -> int | None:
    """Return milliseconds, rounded down; None where no 64 bits hold them."""
    auto = next(
        one for one, stop in (("s", 10**11), ("ms", 10**14), ("us", 10**17), ("ns", 2**70)) if abs(number) < stop
    )
    unit = auto if unit == "auto" else unit
    if abs(number) >= (2**53 if unit == "s" else 2**63 - 1024):
        return None
    return number * 1000 if unit == "s" else number // {"ms": 1, "us": 1000, "ns": 10**6}[unit]


@pytest.mark.parametrize("unit", ["auto", "s", "ms", "us", "ns"])
@given(values=st.lists(numbers, min_size=1, max_size=6))
def test_whole_numbers_are_exact_in_every_type_and_never_cut_to_what_64_bits_hold(unit: str, values: list[int]) -> None:
    expected = [exactly(value, unit) for value in values]
    kinds = [pa.string(), pa.binary(), pa.decimal128(38, 0), pa.decimal256(70, 0), pa.decimal128(20, -1)]
    for kind in kinds:
        scaled = pa.types.is_decimal(kind) and kind.scale < 0
        spelled = [str(value) if not pa.types.is_decimal(kind) else Decimal(value) for value in values]
        if scaled:
            spelled = [Decimal(value // 10 * 10) for value in values]
        found, readable = arrow_millis(pa.array(spelled, kind), unit)  # type: ignore[arg-type]
        assert readable.all()
        wanted = [exactly(value // 10 * 10, unit) for value in values] if scaled else expected
        assert [None if one == BEYOND else one for one in found.tolist()] == wanted
    found, readable = mixed_millis(values, unit)  # type: ignore[arg-type]
    assert [None if one == BEYOND else one for one in found.tolist()] == expected
    assert readable.all()


SPELLED = [
    "1.7e9",
    " 1700000000 ",
    "1700000000.5",
    "1.764e18",
    "99999999999999999999",
    "-5",
    "0x10",
    "nan",
    "1e400",
    "",
]


@given(st.lists(st.sampled_from([*SPELLED, "2023-11-14 22:13:20,5 +0100", "2023-11-14T22:13:20Z", None]), min_size=1))
def test_what_a_text_means_depends_on_no_other(texts: list[str | None]) -> None:
    together, readable = arrow_millis(pa.array(texts, pa.string()), "auto")
    for place, text in enumerate(texts):
        alone, is_readable = arrow_millis(pa.array([text], pa.string()), "auto")
        assert is_readable[0] == readable[place]
        assert not is_readable[0] or alone[0] == together[place]


def test_numbers_in_scientific_notation_and_fractions() -> None:
    found, readable = arrow_millis(
        pa.array(["1.7e9", "17e8", "1.7E+9", "1700000000.5", "1.7e18", "1.7e", "0x10"]), "auto"
    )
    assert readable.tolist() == [True] * 5 + [False] * 2
    assert found.tolist()[:5] == [1_700_000_000_000] * 3 + [1_700_000_000_500, 1_700_000_000_000]
    values = pa.array([Decimal("1700000000.123"), None], pa.decimal128(20, 3))
    assert arrow_millis(values, "auto")[0].tolist()[:1] == [1_700_000_000_123]
