from functools import partial

import numpy as np
import pytest

from tests.sketches.streams import NAMES, counted, stream
from tests.sketches.support import weighted_error, zipf
from weir.sketches import (
    CountMinSketch,
    ExactCounter,
    FrequencyBank,
    FrequencyEstimator,
    GapEstimator,
    health,
    load,
    log_q_error,
    merge_fading,
    parameters,
)

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


@pytest.mark.parametrize("conservative", [True, False], ids=["conservative", "linear"])
@pytest.mark.parametrize("exponent", [0.8, 1.05, 1.3])
@pytest.mark.parametrize("depth", [2, 4])
def test_estimate_is_near_the_true_error(conservative: bool, exponent: float, depth: int) -> None:
    events = zipf(40_000, 200_000, exponent)
    keys, counts = np.unique(events, return_counts=True)
    for cells_per_key in (1, 2):
        width = 1 << int(np.log2(cells_per_key * keys.size / depth))
        sketch = CountMinSketch(width, depth, conservative=conservative)
        for batch in np.array_split(events, 8):
            sketch.update(batch)
        true_error = weighted_error(sketch.log_q(keys), counts.astype(np.float64))
        assert 0.6 * true_error < log_q_error(sketch) < 1.6 * true_error


@pytest.mark.parametrize("how", ["whole", "shards", "windows", "keys"])
@pytest.mark.parametrize("name", NAMES)
def test_merging_leaves_the_estimate_within_a_factor_of_two(name: str, how: str) -> None:
    """Eight parts by chance, by time and by key: the more the keys of parts differ, the more noise comes in."""
    events = stream(name)
    keys, counts = np.unique(events, return_counts=True)
    for cells_per_key in (1, 2, 4):
        width = 1 << round(np.log2(cells_per_key * keys.size / 4))
        sketch = counted(events, how, partial(CountMinSketch, width))
        true_error = weighted_error(sketch.log_q(keys), counts.astype(np.float64))
        assert 0.5 * true_error < log_q_error(sketch) < 2.0 * true_error, (cells_per_key, true_error)


@pytest.mark.parametrize("name", ["zipf 1.05", "uniform"])
def test_windows_that_fade_are_estimated_too(name: str) -> None:
    """As the trainer adds up windows; half-life three windows."""
    events = stream(name)
    keys = np.unique(events)
    counts, sketch = np.zeros(keys.size), CountMinSketch(1 << 14)
    for window in np.array_split(events, 20):
        fresh = CountMinSketch(1 << 14)
        fresh.update(window)
        counts = counts * 0.5 ** (1 / 3) + np.bincount(np.searchsorted(keys, window), minlength=keys.size)
        merge_fading(sketch, fresh, 1.0, 3.0)
    true_error = weighted_error(sketch.log_q(keys), counts)
    assert 0.5 * true_error < log_q_error(sketch) < 2.0 * true_error


def test_the_longest_sketch_of_a_bank_is_measured() -> None:
    bank = FrequencyBank([1e3, 1e9], 1 << 10)
    sketch = CountMinSketch(1 << 10)
    for batch in np.array_split(zipf(5_000, 50_000, 1.05), 10):
        bank.update(batch)
        sketch.update(batch)
    assert log_q_error(bank) == pytest.approx(log_q_error(sketch), rel=0.05)
    assert log_q_error(bank) > 0.01


def test_a_fuller_gap_estimator_is_worse() -> None:
    errors = []
    for width in (1 << 8, 1 << 10, 1 << 12):
        estimator = GapEstimator(width, 3, 0.05)
        estimator.update(zipf(2_000, 20_000, 1.05))
        errors.append(log_q_error(estimator))
    assert errors[0] > 2 * errors[1] > 4 * errors[2] >= 0.0


@pytest.mark.parametrize("estimator", [CountMinSketch(64), GapEstimator(64, 2, 0.1), FrequencyBank([5.0], 64)])
def test_nothing_counted_is_no_error(estimator: FrequencyEstimator) -> None:
    assert log_q_error(estimator) == 0.0


def test_exact_counts_have_no_error() -> None:
    counter = ExactCounter()
    counter.update(np.arange(100))
    assert log_q_error(counter) == 0.0


def test_the_figure_is_repeatable() -> None:
    sketch = CountMinSketch(1 << 8)
    sketch.update(zipf(2_000, 20_000, 1.05))
    assert log_q_error(sketch) == log_q_error(CountMinSketch.from_bytes(sketch.to_bytes()))


def test_strangers_have_no_error() -> None:
    with pytest.raises(ValueError, match="no error estimate for a str"):
        log_q_error("sketch")  # type: ignore[arg-type]
