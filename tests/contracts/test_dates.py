from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts.dates import micros

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
offsets = st.integers(-95, 95).map(lambda quarters: timezone(timedelta(minutes=15 * quarters)))


@st.composite
def spelled(draw: st.DrawFn) -> tuple[str, int]:
    """Draw one of the spellings of a moment, and its microseconds."""
    moment = draw(st.datetimes(datetime(1900, 1, 1), datetime(2199, 12, 31), timezones=offsets))
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
