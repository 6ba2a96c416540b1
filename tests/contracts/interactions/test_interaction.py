import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts.interactions.arrow_columns import not_utf8
from weir.contracts.interactions.interaction import MISSING_IDS, MissingIds

BLANKS = " \t\n\r\x0b\x0c\xa0\u2003\u3000"
near = st.one_of(
    st.sampled_from([*MISSING_IDS, "", " ", "na1", "nan-", "banana", "user", "n", "Ñ", "\ufeff", "\\n"]),
    st.text(BLANKS + "nNaA<>/u\\", max_size=6),
    st.text(max_size=8),
)
texts = st.lists(
    st.none() | st.builds(lambda a, b, c: a + b + c, st.text(BLANKS, max_size=2), near, st.text(BLANKS, max_size=2)),
    max_size=12,
)
ASCII_LOWER = str.maketrans({upper: upper.lower() for upper in map(chr, range(65, 91))})


def folded(text: str) -> str:
    return text.strip().translate(ASCII_LOWER)


@given(texts=texts, start=st.integers(0, 3), listed=st.just(MISSING_IDS) | st.lists(near, max_size=3).map(tuple))
def test_marks_are_those_of_each_text_by_itself(texts: list[str | None], start: int, listed: tuple[str, ...]) -> None:
    values = pa.array(texts, pa.string()).slice(start)
    blank, missing = MissingIds(listed).marks(values, not_utf8(values))
    known = {folded(text) for text in listed} - {""}
    for text, is_blank, is_missing in zip(texts[start:], blank.tolist(), missing.tolist(), strict=True):
        assert is_blank == (text is not None and text != "" and folded(text) == ""), repr(text)
        assert is_missing == (text is not None and folded(text) in known), repr(text)


def test_bytes_that_are_no_text_are_neither() -> None:
    values = pa.array([b"nan", b" \xff", b"n\xffn", b"nan \xc2", b" "]).view(pa.string())
    blank, missing = MissingIds(MISSING_IDS).marks(values, not_utf8(values))
    assert (blank.tolist(), missing.tolist()) == ([False] * 4 + [True], [True] + [False] * 4)


@pytest.mark.parametrize(
    "written", ["nan", "NaN", "NA", "<NA>", "None", "null", "NULL", r"\N", "NaT", "-nan", "nan(ind)"]
)
def test_what_programs_print_for_missing_values_stands_for_no_id(written: str) -> None:
    values = pa.array([written, f"{written}1"])
    assert MissingIds(MISSING_IDS).marks(values, not_utf8(values))[1].tolist() == [True, False]
