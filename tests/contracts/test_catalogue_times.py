from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts.catalogue_times import milliseconds

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
