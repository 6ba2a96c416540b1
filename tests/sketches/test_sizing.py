from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sketches.streams import NAMES, counted, stream
from tests.sketches.support import F64, weighted_error
from weir.sketches import CountMinSketch
from weir.sketches.sizing import equal_counts_error, linear_error, smallest


def cells(distinct: int, error: float, counts: F64 | None = None) -> int:
    width, depth = smallest(distinct, error, counts)
    return width * depth


@pytest.mark.parametrize("error", [0.2, 0.05, 0.01, 0.001])
@pytest.mark.parametrize("name", NAMES)
def test_the_promised_error_is_kept_on_every_stream(name: str, error: float) -> None:
    events = stream(name)
    keys, found = np.unique(events, return_counts=True)
    counts = found.astype(np.float64)
    for known in (None, counts):
        for conservative in (True, False):
            sketch = CountMinSketch.sized_for(keys.size, error, counts=known, conservative=conservative)
            make = partial(CountMinSketch, sketch.width, sketch.depth, conservative=conservative)
            for how in ("whole", "windows", "keys") if conservative else ("whole",):
                merged = counted(events, how, make)
                assert weighted_error(merged.log_q(keys), counts) <= error, (known is None, conservative, how)


@pytest.mark.parametrize("name", NAMES)
def test_counts_of_the_stream_leave_little_memory_unused(name: str) -> None:
    """A sketch of an eighth of the cells is too small, even with conservative updates, which nothing promises."""
    events = stream(name)
    keys, found = np.unique(events, return_counts=True)
    counts = found.astype(np.float64)
    width, depth = smallest(keys.size, 0.05, counts)
    sketch = counted(events, "whole", partial(CountMinSketch, width // 8, depth))
    assert weighted_error(sketch.log_q(keys), counts) > 0.05


@pytest.mark.parametrize("name", NAMES)
def test_the_first_tenth_of_a_stream_tells_its_shape(name: str) -> None:
    events = stream(name)
    if name == "gowalla":  # has no order of time
        events = np.random.default_rng(0).permutation(events)
    keys, found = np.unique(events, return_counts=True)
    first = np.unique(events[: events.size // 10], return_counts=True)[1]
    for error in (0.2, 0.05, 0.01):
        made = CountMinSketch.sized_for(keys.size, error, counts=first)
        sketch = counted(events, "whole", partial(CountMinSketch, made.width, made.depth))
        assert weighted_error(sketch.log_q(keys), found.astype(np.float64)) <= error


@st.composite
def shapes(draw: st.DrawFn) -> F64:
    """Counts of 400 to 3,000 keys: levels of any height and any number of keys."""
    levels = draw(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 200_000)), min_size=1, max_size=5))
    counts = np.concatenate([np.full(size, height) for size, height in levels])
    return np.resize(counts, max(400, min(counts.size, 3000))).astype(np.float64)


@settings(max_examples=40, deadline=None)
@given(shapes(), st.sampled_from([0.3, 0.1, 0.03]), st.randoms(use_true_random=False))
def test_no_distribution_and_no_order_exceeds_the_promise(counts: F64, error: float, random: object) -> None:
    """The mean over seeds; keys come in any order, each at once, which is what helps conservative updates least."""
    keys = np.arange(counts.size, dtype=np.int64)
    order = np.array(sorted(range(counts.size), key=lambda _: random.random()))  # type: ignore[attr-defined]
    for conservative in (True, False):
        found = []
        for seed in range(4):
            sketch = CountMinSketch.sized_for(counts.size, error, conservative=conservative, seed=seed)
            for batch in np.array_split(order, 40):
                sketch.update(keys[batch], counts[batch])
            found.append(weighted_error(sketch.log_q(keys), counts))
        assert np.mean(found) <= error


@settings(max_examples=60, deadline=None)
@given(shapes(), st.sampled_from([0.3, 1.0, 4.0]), st.integers(2, 4))
def test_equal_counts_are_the_worst_case(counts: F64, keys_per_cell: float, depth: int) -> None:
    """The theorem behind the promise; the margin is the chance of drawn hashes."""
    many = np.tile(counts, -(-(1 << 16) // counts.size))
    error = linear_error(many, many.size / keys_per_cell, depth)
    assert error <= 1.05 * equal_counts_error(keys_per_cell, depth) + 0.002


@pytest.mark.parametrize("keys_per_cell", [0.1, 0.3, 2.0, 30.0, 499.0])
def test_the_error_of_equal_counts_is_that_of_drawn_collisions(keys_per_cell: float) -> None:
    rng = np.random.default_rng(0)
    for depth in (1, 2, 4):
        drawn = np.log1p(rng.poisson(keys_per_cell, (depth, 400_000)).min(axis=0))
        margin = 5 * drawn.std() / np.sqrt(drawn.size) + 1e-4
        assert equal_counts_error(keys_per_cell, depth) == pytest.approx(drawn.mean(), abs=margin)


def test_crowded_cells_are_bounded_from_above() -> None:
    assert equal_counts_error(501.0, 1) >= equal_counts_error(499.0, 1)
    assert equal_counts_error(1e9, 4) == pytest.approx(np.log(1e9))


def test_smaller_errors_and_more_keys_never_take_fewer_cells() -> None:
    wanted = [2.0, 0.5, 0.1, 0.03, 0.01, 0.003, 1e-3, 1e-4, 1e-5]
    found = [cells(100_000, error) for error in wanted]
    assert all(small <= large for small, large in pairwise(found)), found
    assert found[-1] > 50 * found[0]
    found = [cells(distinct, 0.05) for distinct in (1, 100, 10_000, 10**6, 10**9)]
    assert all(small < large for small, large in pairwise(found))


def test_uneven_counts_take_fewer_cells() -> None:
    uneven = np.arange(1, 50_001, dtype=np.float64) ** -1.3
    assert cells(50_000, 0.05, uneven) <= cells(50_000, 0.05) / 4
    assert cells(50_000, 0.05, np.ones(50_000)) == cells(50_000, 0.05)


@pytest.mark.parametrize("error", [0.0, -0.1, float("nan")])
def test_an_error_is_positive(error: float) -> None:
    with pytest.raises(ValueError, match=str(error)):
        smallest(10, error)


def test_an_error_that_no_sketch_reaches_is_refused() -> None:
    with pytest.raises(ValueError, match="allow a larger error"):
        smallest(10**9, 1e-300)


@pytest.mark.parametrize(
    ("counts", "problem"),
    [([], "1 to distinct"), ([1.0] * 11, "1 to distinct"), ([[1.0]], "1 to distinct"), ([0.0], "above 0"),
     ([1.0, float("nan")], "above 0"), ([float("inf")], "above 0")],
)  # fmt: skip
def test_counts_are_those_of_keys(counts: list[float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        CountMinSketch.sized_for(10, 0.1, counts=counts)


def test_sized_for_needs_keys() -> None:
    with pytest.raises(ValueError, match="got 0"):
        CountMinSketch.sized_for(0, 0.1)
    assert CountMinSketch.sized_for(1, 0.1).width >= 2
