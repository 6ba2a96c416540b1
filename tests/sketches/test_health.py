import numpy as np
import pytest

from sketches import (
    CountMinSketch,
    ExactCounter,
    FrequencyBank,
    FrequencyEstimator,
    GapEstimator,
    health,
    load,
    log_q_error,
    parameters,
)
from tests.sketches.support import zipf

EVENTS = zipf(3_000, 20_000, 1.05)
DISTINCT = np.unique(EVENTS).size


@pytest.mark.parametrize(
    "estimator",
    [
        CountMinSketch(1 << 11),
        CountMinSketch(1 << 12, conservative=False),
        GapEstimator(1 << 12, 2, 0.1),
        FrequencyBank([1e3, 1e6], 1 << 12),
    ],
    ids=["conservative", "linear", "gap", "bank"],
)
def test_empty_cells_tell_how_many_keys_there_are(estimator: FrequencyEstimator) -> None:
    estimator.update(EVENTS)
    found = health(estimator)
    assert found.distinct == pytest.approx(DISTINCT, rel=0.05)
    assert found.total == estimator.total
    assert found.log_q_error == log_q_error(estimator)
    assert 0 < found.fill < 1


def test_decay_and_merging_leave_the_number_of_keys() -> None:
    first, second = CountMinSketch(1 << 12), CountMinSketch(1 << 12)
    first.update(EVENTS[:10_000])
    second.update(EVENTS[10_000:])
    first.decay(1e-3)
    first.merge(second)
    assert health(first).distinct == pytest.approx(DISTINCT, rel=0.05)


def test_exact_counts_are_exactly_known() -> None:
    counter = ExactCounter()
    counter.update(EVENTS)
    found = health(counter)
    assert (found.total, found.distinct, found.log_q_error) == (20_000, DISTINCT, 0)
    assert 0.25 < found.fill <= 0.5


def test_a_full_sketch_knows_many_keys_and_an_empty_one_none() -> None:
    sketch = CountMinSketch(16)
    assert health(sketch) == (0, 0, 0, 0)
    sketch.update(EVENTS)
    assert health(sketch).fill == 1
    assert health(sketch).distinct > 16


def test_parameters_are_all_there_and_survive_storage() -> None:
    wanted = {
        CountMinSketch(64, 3, seed=9): {"kind": "count_min", "width": 64, "depth": 3, "conservative": True, "seed": 9},
        ExactCounter(): {"kind": "exact"},
        GapEstimator(64, 2, 0.5): {"kind": "gap", "width": 64, "depth": 2, "alpha": 0.5, "seed": 0},
        FrequencyBank([5.0, 9.0], 64): {"kind": "bank", "half_lives": (5.0, 9.0), "width": 64, "depth": 4, "seed": 0},
    }
    for estimator, found in wanted.items():
        assert parameters(estimator) == parameters(load(estimator.to_bytes())) == found


def test_strangers_are_named() -> None:
    with pytest.raises(ValueError, match="no parameters of a str"):
        parameters("sketch")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no metrics for a str"):
        health("sketch")  # type: ignore[arg-type]
