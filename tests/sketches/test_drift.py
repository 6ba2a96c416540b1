import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial import distance

from weir.sketches import Counted, head_distance, jensen_shannon, unseen_share

counts = hnp.arrays(np.float64, 12, elements=st.integers(0, 50).map(float))
counted = st.dictionaries(st.integers(-9, 9), st.integers(1, 40), min_size=1, max_size=12).map(
    lambda found: Counted(np.array(list(found), np.int64), np.array(list(found.values())))
)


@given(counts, counts)
def test_the_distance_is_that_of_scipy(left: np.ndarray, right: np.ndarray) -> None:
    if not left.sum() or not right.sum():
        assert math.isnan(jensen_shannon(left, right))
        return
    # Near 0 the square root turns rounding errors of 1e-16 into 1e-8.
    assert jensen_shannon(left, right) == pytest.approx(float(distance.jensenshannon(left, right, base=2)), abs=1e-7)


@given(counted, counted)
def test_a_head_of_all_keys_is_the_distance_over_all_keys(left: Counted, right: Counted) -> None:
    keys = np.union1d(left.keys, right.keys)
    dense = [[dict(zip(*map(list, side), strict=True)).get(key, 0) for key in keys] for side in (left, right)]
    assert head_distance(left, right) == pytest.approx(jensen_shannon(*dense), abs=1e-7)
    assert head_distance(left, right, 3) <= head_distance(left, right) + 1e-7, "merging keys cannot add distance"


def test_only_the_head_is_compared_key_by_key() -> None:
    left = Counted(np.arange(5), np.array([90, 4, 3, 2, 1]))
    moved = Counted(np.array([0, 11, 12, 13, 14]), np.array([90, 4, 3, 2, 1]))
    assert head_distance(left, moved, 1) == 0
    assert head_distance(left, moved, 2) > 0.1
    assert head_distance(left, Counted(np.array([7]), np.array([1]))) == 1


def test_order_and_scale_do_not_matter() -> None:
    left = Counted(np.array([1, 2, 3]), np.array([5, 5, 2]))
    assert head_distance(left, Counted(np.array([3, 2, 1]), np.array([20, 50, 50])), 1) == 0


def test_events_on_keys_that_are_new() -> None:
    period = Counted(np.array([1, 2, 3]), np.array([6, 3, 1]))
    assert unseen_share(period, np.array([1, 3, 9])) == pytest.approx(0.3)
    assert unseen_share(period, np.empty(0, np.int64)) == 1
    assert math.isnan(unseen_share(Counted(np.empty(0, np.int64), np.empty(0)), np.array([1])))
