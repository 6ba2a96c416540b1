"""Intervals that hold at every look: against the definition of their boundary, and by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts.confidence import Running, boundary

ALPHA = 0.05
LOOKS = 2000
RUNS = 200


def test_the_boundary_is_where_a_mixture_of_rates_reaches_one_over_alpha() -> None:
    """Evaluated as the definition says, with plain numbers."""
    variance, alpha = 37.0, 0.025
    reach = boundary(variance, alpha)
    rates = [1e-4 * (0.95 / 1e-4) ** (i / 47) for i in range(48)]
    terms = [math.exp(rate * reach - (-math.log(1 - rate) - rate) * variance) for rate in rates]
    assert sum(terms) / 48 == pytest.approx(1 / alpha, rel=1e-6)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1e-6, 0.5))
def test_the_boundary_grows_with_variance_and_shrinks_with_alpha(one: float, other: float, alpha: float) -> None:
    """More variance allows for more, a smaller alpha as well."""
    assert boundary(min(one, other), alpha) <= boundary(max(one, other), alpha) + 1e-9
    assert boundary(one, alpha) <= boundary(one, alpha / 2) + 1e-9


def test_without_variance_few_observations_are_conclusive() -> None:
    """Hundreds of ones bound the mean near 1: the range alone would not."""
    low, high = Running().add(np.ones(400)).interval(ALPHA)
    assert low > 0.97
    assert high == 1.0


def test_nothing_seen_says_nothing() -> None:
    """The interval holds everything."""
    assert Running().interval(ALPHA) == (0.0, 1.0)
    assert Running().add([]) == Running()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 30))
def test_adding_in_pieces_is_adding_at_once(values: list[float], cut: int) -> None:
    """A restart between two windows changes nothing."""
    once, twice = Running().add(values), Running().add(values[:cut]).add(values[cut:])
    assert once.count == twice.count
    assert once.total == pytest.approx(twice.total)
    assert once.variance == pytest.approx(twice.variance)


def test_the_variance_is_measured_from_the_mean_before() -> None:
    """A prediction may use the past alone: value by value, in plain Python."""
    values, seen, wanted = [0.2, 0.9, 0.4, 1.0], [0.5], 0.0
    for value in values:
        wanted += (value - sum(seen) / len(seen)) ** 2
        seen.append(value)
    assert Running().add(values).variance == pytest.approx(wanted)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_an_observation_out_of_range_is_refused(value: float) -> None:
    """The intervals hold for [0, 1] alone."""
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        Running().add([0.5, value])


def _misses(draws: np.ndarray, means: np.ndarray) -> tuple[float, float]:
    """Return the share of runs in which the interval, and a naive one, ever misses the running mean of the means."""
    counts = np.arange(1, LOOKS + 1)
    wrong, naive = 0, 0
    for values, mean in zip(draws, means, strict=True):
        truth, average = np.cumsum(mean) / counts, np.cumsum(values) / counts
        errors = np.sqrt(np.maximum(average * (1 - average), 1e-12) / counts)
        naive += bool((np.abs(average - truth) > 1.96 * errors)[30:].any())
        running, missed = Running(), False
        for start in range(0, LOOKS, 50):
            running = running.add(values[start : start + 50])
            low, high = running.interval(ALPHA)
            missed = missed or not low <= truth[start + 49] <= high
        wrong += missed
    return wrong / len(draws), naive / len(draws)


def test_looking_at_any_time_is_wrong_at_most_as_often_as_promised() -> None:
    """Independent draws, 40 looks a run: at most alpha of the runs; the naive interval fails in many of them."""
    random = np.random.default_rng(0)
    wrong, naive = _misses(random.random((RUNS, LOOKS)) < 0.3, np.full((RUNS, LOOKS), 0.3))
    assert wrong <= ALPHA
    assert naive > 5 * ALPHA


def test_means_that_drift_and_depend_on_the_past_are_covered() -> None:
    """The mean of each draw follows from those before it: what is covered is the running mean of these means."""
    random = np.random.default_rng(1)
    draws, means = np.zeros((RUNS, LOOKS)), np.zeros((RUNS, LOOKS))
    memory = np.full(RUNS, 0.5)
    for look in range(LOOKS):
        means[:, look] = 0.2 + 0.5 * memory + 0.1 * np.sin(look / 100)
        draws[:, look] = random.random(RUNS) < means[:, look]
        memory += 0.1 * (draws[:, look] - memory)
    wrong, _ = _misses(draws, means)
    assert wrong <= ALPHA
