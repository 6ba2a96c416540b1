import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sketches import CountMinSketch, ExactCounter, merge_fading


def counted(key: int, times: int) -> ExactCounter:
    counter = ExactCounter()
    counter.update(np.full(times, key))
    return counter


@given(st.floats(-100, 100), st.floats(0.1, 100), st.integers(1, 9), st.integers(1, 9))
def test_the_older_side_has_halved_with_every_half_life(later: float, life: float, old: int, new: int) -> None:
    counts = counted(1, old)
    fading = merge_fading(counts, counted(2, new), later, life)
    assert fading == pytest.approx(2 ** (-abs(later) / life))
    expected = [old * fading, new] if later > 0 else [old, new * fading]
    np.testing.assert_allclose(counts.estimate(np.array([1, 2])), expected, atol=1e-6)


def test_ages_pass_without_a_fault() -> None:
    counts = counted(1, 5)
    merge_fading(counts, counted(2, 3), 1e9, 1.0)
    np.testing.assert_allclose(counts.estimate(np.array([1, 2])), [0, 3], atol=1e-6)


def test_what_differs_is_not_merged() -> None:
    with pytest.raises(ValueError, match="width"):
        merge_fading(CountMinSketch(16), CountMinSketch(32), 1.0, 1.0)
