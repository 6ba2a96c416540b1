from hypothesis import given, settings
from hypothesis import strategies as st

from weir.readers.row_ends import QuoteTracker

delimiters = st.sampled_from([b",", b"\t", b";"])
signs = st.sampled_from([b'"', b'"', b'"', b",", b"\t", b"\n", b"\n", b"a", b" ", b"\r", "é".encode()])
texts = st.lists(signs, max_size=30).map(b"".join)


def breaks_of(text: bytes, delimiter: bytes) -> tuple[list[tuple[int, bool]], bool]:
    """Return the line breaks of a text, whether each is outside quotes, and what is open at the end: sign by sign."""
    found, at, is_open, may_open = [], 0, False, True
    while at < len(text):
        sign = text[at : at + 1]
        if sign == b"\n":
            found.append((at, not is_open))
        if is_open and text[at : at + 2] == b'""':
            at += 1
        elif sign == b'"':
            is_open = may_open and not is_open
            may_open = False
        elif not is_open and (sign == delimiter or sign in b"\r\n"):
            may_open = True
        elif sign not in b" \t" or sign == delimiter:
            may_open = False
        at += 1
    return found, is_open


def followed(quotes: QuoteTracker, text: bytes, sizes: list[int]) -> list[tuple[int, bool]]:
    found, at = [], 0
    for size in [*sizes, len(text)]:
        places, outside = quotes.breaks(text[at : at + size])
        found += zip((places + at).tolist(), outside.tolist(), strict=True)
        at += size
    return found


@settings(max_examples=1000)
@given(texts, delimiters, st.lists(st.integers(1, 6), max_size=8))
def test_breaks_lie_where_reading_sign_by_sign_finds_them(text: bytes, delimiter: bytes, sizes: list[int]) -> None:
    quotes = QuoteTracker(delimiter.decode())
    assert (followed(quotes, text, sizes), quotes.is_open) == breaks_of(text, delimiter)


@given(texts, texts, delimiters, st.lists(st.integers(1, 6), max_size=8))
def test_a_piece_that_is_skipped_counts(before: bytes, text: bytes, delimiter: bytes, sizes: list[int]) -> None:
    quotes = QuoteTracker(delimiter.decode())
    at = 0
    for size in [*sizes, len(before)]:
        quotes.skip(before[at : at + size])
        at += size
    found = [(at + len(before), outside) for at, outside in followed(quotes, text, [])]
    whole, is_open = breaks_of(before + text, delimiter)
    assert (found, quotes.is_open) == ([one for one in whole if one[0] >= len(before)], is_open)


@settings(max_examples=1000)
@given(texts, st.integers(0, 30), delimiters)
def test_quotes_can_be_followed_from_a_place_in_the_middle(text: bytes, start: int, delimiter: bytes) -> None:
    found = QuoteTracker(delimiter.decode()).behind(text[start:])
    if found is not None:
        place, quotes = start + found[0], found[1]
        later = [(place + at, outside) for at, outside in followed(quotes, text[place:], [])]
        assert later == [one for one in breaks_of(text, delimiter)[0] if one[0] >= place]


def test_a_closing_quote_is_such_a_place_and_an_opening_one_is_none() -> None:
    assert QuoteTracker(",").behind(b'x\n"a",1\n"b",2\n3') is not None
    assert QuoteTracker(",").behind(b'x\n"a\n') is None
    assert QuoteTracker(",").behind(b"x\n1,2\n") is None


def test_a_byte_order_mark_stands_before_the_first_value() -> None:
    places, outside = QuoteTracker(",").breaks(b'\xef\xbb\xbf"a\nb",c\n')
    assert (places.tolist(), outside.tolist()) == ([5, 10], [False, True])
