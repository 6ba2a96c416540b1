""""""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts.interactions.times import micros, milliseconds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(timezones=st.one_of(st.just(UTC), offsets))
spelt = st.from_regex(
    r"([0-9]{4}-[01][0-9]-[0-3][0-9]|2026-11-2[0-9])"
    r"([T t](2[0-4]|[01][0-9])(:[0-6][0-9](:[0-6][0-9]([.,][0-9]{1,9})?)?)?(Z|z|[+-][0-2][0-9](:?[0-6][0-9])?)?)?",
    fullmatch=True,
)
written = st.one_of(
    spelt, moments.map(datetime.isoformat), st.integers().map(str), st.text(max_size=12), st.from_regex(r"[-+ _0-9]+")
)


def read(*texts: str) -> list[tuple[int | None, bool]]:
    found, bad = milliseconds(pa.array(texts, pa.string()))
    return list(zip(found.to_pylist(), bad.tolist(), strict=True))


@given(moments)
def test_a_moment_is_read_to_the_millisecond_before_it(moment: datetime) -> None:
    assert read(moment.isoformat()) == [((moment - EPOCH) // timedelta(milliseconds=1), False)]


@given(written, written)
def test_what_a_text_means_depends_on_no_other(one: str, other: str) -> None:
    alone = read(one) + read(other)
    assert read(one, other) == alone
    assert read(one, other, "no time") == [*alone, (None, True)]
    assert all((value is None) == is_bad for value, is_bad in alone)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1795161600000", 1795161600000),
        ("+5", 5),
        ("-1", -1),
        ("1000000000000000", 10**15),
        ("1000000000000001", None),
        ("1_000", None),
        ("\N{ARABIC-INDIC DIGIT THREE}", None),
        ("9" * 5000, None),
        ("", None),
        ("0000-01-01T00:00:00Z", None),
        ("10000-01-01", None),
    ],
)
def test_an_integer_is_of_milliseconds_and_a_year_has_four_digits(text: str, value: int | None) -> None:
    assert read(text) == [(value, value is None)]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@given(st.integers(-(10**18), 10**18))
def test_columns_of_times_are_read_to_the_millisecond_before(unit: str, zone: str | None, value: int) -> None:
    shift = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[unit]
    ticks = value // shift
    found, bad = milliseconds(pa.array([ticks, None], pa.int64()).cast(pa.timestamp(unit, zone)))
    assert found.to_pylist() == [ticks * shift // 10**6, None]
    assert not bad.any()


def test_days_and_integers_and_nothing_are_read_too() -> None:
    days = pa.array([date(2026, 11, 20), date(1960, 1, 1), None])
    expected = [1795132800000, -315619200000, None]
    for column in (days, days.cast(pa.date64()), pa.array(expected, pa.int64())):
        assert milliseconds(column)[0].to_pylist() == expected
    for nothing in (pa.nulls(2), pa.nulls(2, pa.string())):
        assert milliseconds(nothing)[0].to_pylist() == [None, None]


def test_floats_are_integers_among_which_some_were_missing() -> None:
    found, bad = milliseconds(pa.array([1795161600000.0, None, float("nan"), float("inf"), 1e300, -1.5]))
    assert found.to_pylist() == [1795161600000, None, None, None, None, -2]
    assert bad.tolist() == [False, False, True, True, True, False]


@pytest.mark.parametrize(
    "kind",
    [pa.int64(), pa.uint64(), pa.float64(), pa.decimal128(38, 0), pa.decimal128(38, 3), pa.string(), pa.binary()],
    ids=str,
)
def test_milliseconds_are_read_from_every_type_and_refused_beyond_their_bounds(kind: pa.DataType) -> None:
    values = [5, 1_795_161_600_000, 10**15, 10**15 + 1, 1_795_161_600_000_000_000, None]
    of = {"decimal": Decimal, "double": float, "string": str, "binary": lambda value: str(value).encode()}
    spell = next((one for name, one in of.items() if str(kind).startswith(name)), int)
    found, bad = milliseconds(pa.array([None if value is None else spell(value) for value in values], kind))
    assert found.to_pylist() == [5, 1_795_161_600_000, 10**15, None, None, None]
    assert bad.tolist() == [False] * 3 + [True] * 2 + [False]


@pytest.mark.parametrize(("kind", "value"), [(pa.bool_(), True), (pa.list_(pa.int64()), [1]), (pa.time32("s"), 1)])
def test_other_types_are_no_times(kind: pa.DataType, value: object) -> None:
    found, bad = milliseconds(pa.array([None, value], kind))
    assert (found.to_pylist(), bad.tolist()) == ([None, None], [False, True])


def test_texts_are_spelt_as_in_a_log_and_bytes_that_are_none_cost_their_rows() -> None:
    assert read(
        "2026-11-20 09:00:00,5 +0100", "2026-11-20t08:00z", "1.7951616e12", " 5 ", "2026-11-20 08:00:00 UTC"
    ) == [
        (1_795_161_600_500, False),
        (1_795_161_600_000, False),
        (1_795_161_600_000, False),
        (5, False),
        (1_795_161_600_000, False),
    ]
    found, bad = milliseconds(pa.array([b"\xff", b"2026-11-20"]).view(pa.string()))
    assert (found.to_pylist(), bad.tolist()) == ([None, 1_795_132_800_000], [True, False])


quarter_hours = st.integers(-95, 95).map(lambda quarters: timezone(timedelta(minutes=15 * quarters)))


@st.composite
def spelled(draw: st.DrawFn) -> tuple[str, int]:
    """Draw one of the spellings of a moment, and its microseconds."""
    moment = draw(st.datetimes(datetime(1900, 1, 1), datetime(2199, 12, 31), timezones=quarter_hours))
    digits = draw(st.integers(0, 9))
    moment = moment.replace(microsecond=moment.microsecond if digits else 0)
    fraction = f"{moment.microsecond:06}999"[:digits]
    kept = int(fraction[:6].ljust(6, "0"))
    clock = f"{moment:%H:%M:%S}" + (draw(st.sampled_from(".,")) + fraction if digits else "")
    minutes = moment.utcoffset() // timedelta(minutes=1)  # type: ignore[operator]
    hours, rest = divmod(abs(minutes), 60)
    sign = "-" if minutes < 0 else "+"
    zones = [f"{sign}{hours:02}:{rest:02}", f"{sign}{hours:02}{rest:02}"]
    zones += [f"{sign}{hours:02}"] * (not rest) + ["Z", "z", "UTC", "gmt", "+0000 UTC"] * (not minutes)
    zone = draw(st.sampled_from(["", " "])) + draw(st.sampled_from(zones))
    zone += "" if zone[-1] in "cCtT" else draw(st.sampled_from(["", "[Europe/Berlin]", "[UTC]"]))
    day = f"{moment:%Y-%m-%d}"
    text = draw(st.sampled_from([day, day.replace("-", "/")])) + draw(st.sampled_from("Tt ")) + clock + zone
    if text[10] != " " and draw(st.booleans()):
        text = text[:19].translate({ord(mark): None for mark in "-/:"}) + text[19:]
    blanks = st.text(" \t", max_size=2)
    exact = (moment.replace(microsecond=kept) - EPOCH) // timedelta(microseconds=1)
    return draw(blanks) + text + draw(blanks), exact


NONE = [
    "soon",
    "",
    "2023-02-30T00:00:00Z",
    "2023-13-01T00:00:00Z",
    "03.04.2026",
    "2023-11-14T22:13:20",
    "20231114",
    "2023/11-14T22:13:20Z",
    "14/11/2023 22:13Z",
]


@given(st.lists(spelled() | st.sampled_from(NONE).map(lambda text: (text, None)), min_size=1, max_size=8))
def test_every_spelling_is_the_moment_whatever_stands_beside_it(cases: list[tuple[str, int | None]]) -> None:
    texts = [text for text, _ in cases]
    assert micros(pa.array(texts)).to_pylist() == [moment for _, moment in cases]


@given(
    st.lists(st.sampled_from(["2023-11-14 22:13:20,5", "2023-11-14", "2023-11-14t22:13", "2023-11-14T22:13:20Z", "x"]))
)
def test_a_zone_is_that_of_texts_without_one(texts: list[str]) -> None:
    known = {
        "2023-11-14 22:13:20,5": 1_699_996_400_500_000,
        "2023-11-14": 1_699_916_400_000_000,
        "2023-11-14t22:13": 1_699_996_380_000_000,
        "2023-11-14T22:13:20Z": 1_700_000_000_000_000,
    }
    assert micros(pa.array(texts, pa.string()), "Europe/Berlin").to_pylist() == [known.get(text) for text in texts]


@pytest.mark.parametrize("raw", [b"\xff", b"2023-11-14T22:13:20\xffZ"])
def test_bytes_that_are_no_text_are_no_date(raw: bytes) -> None:
    values = pa.array([raw, b"2023-11-14t22:13:20z"]).view(pa.string())
    assert micros(values).to_pylist() == [None, 1_700_000_000_000_000]
