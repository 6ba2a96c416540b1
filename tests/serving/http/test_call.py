from hypothesis import given
from hypothesis import strategies as st

from weir.serving.http.call import seconds_of

UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


@given(st.integers(0, 10**8 - 1), st.sampled_from(sorted(UNITS)))
def test_timeouts_are_those_of_grpc(number: int, unit: str) -> None:
    assert seconds_of(f"{number}{unit}") == number * UNITS[unit]


@given(st.one_of(st.text(max_size=12), st.from_regex(r"\A(-?\d{9,}[HMS]|\d+|\d+s|[HMS]\d+)\Z")))
def test_other_words_are_no_timeout(text: str) -> None:
    is_one = len(text) in range(2, 10) and text[-1] in UNITS and text[:-1].isdecimal() and text[:-1].isascii()
    assert (seconds_of(text) is not None) == is_one
