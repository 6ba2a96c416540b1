import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sketches.support import I64, key_arrays, weighted_error, zipf
from weir.sketches import CountMinSketch, GapEstimator


def reference(events: list[int], slots: list[int], alpha: float, width: int) -> tuple[list[int], list[float]]:
    """Yi et al., Algorithm 2, one event after the other; the first gap of a cell starts its average."""
    last, gap = [0] * width, [0.0] * width
    for step, slot in enumerate((slots[event] for event in events), start=1):
        seen = last[slot] > 0
        gap[slot] = (1 - alpha) * gap[slot] + alpha * (step - last[slot]) if seen else float(step)
        last[slot] = step
    return last, gap


@given(batches=st.lists(key_arrays(40), max_size=4), alpha=st.floats(0.01, 1.0))
def test_whole_batches_equal_the_algorithm_event_by_event(batches: list[I64], alpha: float) -> None:
    estimator = GapEstimator(16, 1, alpha)
    for batch in batches:
        estimator.update(batch)
    events = np.concatenate([*batches, np.array([], dtype=np.int64)])
    slots = estimator._hash.slots(events)[0].tolist()
    last, gap = reference(list(range(events.size)), slots, alpha, 16)
    assert estimator._last.tolist() == last
    np.testing.assert_allclose(estimator._gap, gap, rtol=1e-9)


def test_regular_keys_are_counted_exactly() -> None:
    estimator = GapEstimator(1 << 12, 4, 0.1)
    estimator.update(np.tile([1, 2, 1, 3], 500))
    np.testing.assert_allclose(estimator.estimate([1, 2, 3, 4]), [1000, 500, 500, 0], rtol=1e-9)
    estimator.decay(0.5)
    np.testing.assert_allclose(estimator.estimate([1, 2]), [500, 250], rtol=1e-9)
    assert estimator.total == 1000.0


def test_a_whole_weight_is_that_many_events() -> None:
    weighted, repeated = GapEstimator(64, 2, 0.2), GapEstimator(64, 2, 0.2)
    weighted.update([5, 6, 7], [3.0, 0.0, 2.0])
    repeated.update([5, 5, 5, 7, 7])
    assert weighted.to_bytes() == repeated.to_bytes()


@pytest.mark.parametrize(("weight", "named"), [(1.5, "1.5"), (2.0**25, "33554432")])
def test_weights_without_a_gap_are_refused(weight: float, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        GapEstimator(64, 2, 0.2).update([5], [weight])


def test_merge_averages_rates() -> None:
    left, right = GapEstimator(1 << 12, 4, 0.05), GapEstimator(1 << 12, 4, 0.05)
    left.update(np.tile([1, 2], 500))
    right.update(np.tile([1, 3, 3, 3], 500))
    left.merge(right)
    np.testing.assert_allclose(left.estimate([1, 2, 3]), [1000, 500, 1500], rtol=0.02)
    assert left.total == 3000.0


def test_merging_what_differs_names_the_difference() -> None:
    with pytest.raises(ValueError, match=r"alpha 0\.1 and 0\.2"):
        GapEstimator(64, 2, 0.1).merge(GapEstimator(64, 2, 0.2))


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.1])
def test_alpha_lies_in_0_to_1(alpha: float) -> None:
    with pytest.raises(ValueError, match=str(alpha)):
        GapEstimator(64, 2, alpha)


def test_count_min_is_more_precise_in_the_same_memory() -> None:
    events = zipf(20_000, 200_000, 1.05)
    keys, counts = np.unique(events, return_counts=True)
    gap, sketch = GapEstimator(1 << 12, 4, 0.02), CountMinSketch(1 << 14, 4)
    for batch in np.array_split(events, 25):
        gap.update(batch)
        sketch.update(batch)
    assert gap.nbytes == sketch.nbytes
    error = weighted_error(gap.log_q(keys), counts.astype(np.float64))
    assert 0.05 < error < 1.0
    assert weighted_error(sketch.log_q(keys), counts.astype(np.float64)) < 0.5 * error
