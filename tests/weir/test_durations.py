"""Lengths of time as people say them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.durations import in_words

UNITS = {"s": 1, "min": 60, "h": 3600, "days": 86_400}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0 s"),
        (-0.25, "-0.2 s"),
        (3.46, "3.5 s"),
        (119.9, "119.9 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2.0 h"),
        (100_000, "28 h"),
        (172_800, "2.0 days"),
        (27_416_753.2, "317 days"),
        (86_400 * 4000, "4,000 days"),
    ],
)
def test_the_unit_suits_the_length(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


@given(st.floats(min_value=0, max_value=1e10))
def test_what_is_said_is_true_to_a_quarter(seconds: float) -> None:
    figure, unit = in_words(seconds).replace(",", "").split()
    assert float(figure) * UNITS[unit] == pytest.approx(seconds, rel=0.25, abs=0.05)
