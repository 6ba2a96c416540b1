import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.sketches.total import Total

weights = st.lists(st.floats(0, 1e6, allow_nan=False, allow_subnormal=False), max_size=50)


@given(values=weights, cut=st.integers(0, 50))
def test_sum_does_not_depend_on_order_or_merging(values: list[float], cut: int) -> None:
    whole, left, right = Total(), Total(), Total()
    whole.add(len(values), np.array(values))
    left.add(cut, np.array(values[::-1][:cut]))
    right.add(0, np.array(values[::-1][cut:]))
    left.merge(right)
    assert left.to_bytes() == whole.to_bytes()
    assert whole.value == pytest.approx(math.fsum(values), rel=1e-12, abs=50 * 2.0**-51)


def test_a_thousand_million_million_single_events_are_exact() -> None:
    total = Total()
    total.add(10**15, None)
    for _ in range(3):
        total.add(1, None)
    assert total.value == 10**15 + 3


@given(count=st.integers(0, 10**9), factor=st.floats(1e-12, 1.0))
def test_decay_is_rounded_once(count: int, factor: float) -> None:
    total = Total()
    total.add(count, None)
    total.decay(factor)
    assert abs(Fraction(total.value) - count * Fraction(factor)) <= Fraction(1, 2**50) + Fraction(count, 2**52)


def test_subtract_stops_at_zero_and_bytes_round_trip() -> None:
    small, large = Total(), Total()
    small.add(2, None)
    large.add(5, np.array([4.5, 0.25]))
    assert Total.from_bytes(large.to_bytes()).value == 4.75
    large.subtract(small)
    assert large.value == 2.75
    small.subtract(large)
    assert small.value == 0.0
