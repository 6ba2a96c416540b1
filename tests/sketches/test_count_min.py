import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sketches.support import F64, I64, true_counts, weighted_batches, weighted_error, whole_batches, zipf
from weir.sketches import CountMinSketch, ExactCounter

Batch = tuple[I64, F64 | None]
modes = pytest.mark.parametrize("conservative", [True, False], ids=["conservative", "linear"])


def counted(batches: list[Batch], *, conservative: bool = True, width: int = 64, depth: int = 3) -> CountMinSketch:
    sketch = CountMinSketch(width, depth, conservative=conservative)
    for keys, weights in batches:
        sketch.update(keys, weights)
    return sketch


def arrays_of(counts: dict[int, float]) -> tuple[I64, F64]:
    return np.array(list(counts), dtype=np.int64), np.array(list(counts.values()), dtype=np.float64)


@modes
@given(batches=st.lists(weighted_batches(), max_size=5))
def test_estimate_never_falls_below_the_truth(conservative: bool, batches: list[Batch]) -> None:
    keys, counts = arrays_of(true_counts(batches))
    estimates = counted(batches, conservative=conservative).estimate(keys)
    assert (estimates >= counts * (1 - 1e-12)).all()


@modes
@given(batches=st.lists(weighted_batches(), max_size=5))
def test_no_estimate_exceeds_the_total_by_more_than_rounding(conservative: bool, batches: list[Batch]) -> None:
    sketch = counted(batches, conservative=conservative)
    events = sum(keys.size for keys, _ in batches)
    quantum = max(2.0**-12, sketch.total * 2.0**-31)
    assert (sketch.estimate(np.arange(-50, 50)) <= sketch.total + 2 * events * quantum).all()


@given(batches=st.lists(whole_batches(), max_size=5))
def test_conservative_is_never_worse_than_linear(batches: list[Batch]) -> None:
    keys, _ = arrays_of(true_counts(batches))
    conservative = counted(batches, conservative=True).estimate(keys)
    assert (conservative <= counted(batches, conservative=False).estimate(keys)).all()


@modes
@given(batches=st.lists(weighted_batches(), min_size=1, max_size=5), factor=st.floats(1e-6, 1.0, exclude_min=True))
def test_decay_multiplies_counts_and_total(conservative: bool, batches: list[Batch], factor: float) -> None:
    sketch = counted(batches, conservative=conservative)
    keys = np.concatenate([keys for keys, _ in batches])
    before, total = sketch.estimate(keys), sketch.total
    sketch.decay(factor)
    np.testing.assert_allclose(sketch.estimate(keys), before * factor, rtol=1e-12)
    assert sketch.total == pytest.approx(total * factor, rel=1e-12, abs=2.0**-50)


@modes
@given(parts=st.lists(st.tuples(whole_batches(), st.floats(0.01, 1.0)), max_size=6))
def test_bound_and_total_hold_under_decay(conservative: bool, parts: list[tuple[Batch, float]]) -> None:
    sketch = CountMinSketch(32, 3, conservative=conservative)
    truth: dict[int, float] = {}
    for batch, factor in parts:
        sketch.update(*batch)
        sketch.decay(factor)
        for key, count in true_counts([batch]).items():
            truth[key] = truth.get(key, 0.0) + count
        truth = {key: count * factor for key, count in truth.items()}
    keys, counts = arrays_of(truth)
    assert (sketch.estimate(keys) >= counts * (1 - 1e-12)).all()
    assert sketch.total == pytest.approx(math.fsum(counts), rel=1e-12, abs=1e-12)


@given(left=st.lists(whole_batches(), max_size=4), right=st.lists(whole_batches(), max_size=4))
def test_linear_merge_equals_the_concatenated_stream_bit_for_bit(left: list[Batch], right: list[Batch]) -> None:
    merged = counted(left, conservative=False)
    merged.merge(counted(right, conservative=False))
    assert merged.to_bytes() == counted(left + right, conservative=False).to_bytes()


@given(left=st.lists(weighted_batches(), max_size=4), right=st.lists(weighted_batches(), max_size=4))
@settings(max_examples=50)
def test_linear_merge_is_exact_for_fractional_weights_too(left: list[Batch], right: list[Batch]) -> None:
    def lighter(batches: list[Batch]) -> list[Batch]:  # below 2**20 events per cell, as the class promises
        return [(keys, None if weights is None else weights / 512) for keys, weights in batches]

    merged = counted(lighter(left), conservative=False)
    merged.merge(counted(lighter(right), conservative=False))
    assert merged.to_bytes() == counted(lighter(left + right), conservative=False).to_bytes()


@given(batches=st.lists(whole_batches(), max_size=4), cut=st.integers(1, 60))
def test_linear_updates_do_not_depend_on_order_or_batches(batches: list[Batch], cut: int) -> None:
    again: list[Batch] = []
    for keys, weights in reversed(batches):
        for start in range(0, keys.size, cut):
            end = start + cut
            again.append((keys[start:end][::-1], None if weights is None else weights[start:end][::-1]))
    assert counted(again, conservative=False).to_bytes() == counted(batches, conservative=False).to_bytes()


@given(kept=st.lists(whole_batches(), max_size=3), gone=st.lists(whole_batches(), max_size=3))
def test_subtract_undoes_merge(kept: list[Batch], gone: list[Batch]) -> None:
    sketch, part = counted(kept + gone, conservative=False), counted(gone, conservative=False)
    sketch.subtract(part)
    expected = counted(kept, conservative=False)
    keys = np.arange(-30, 30)
    np.testing.assert_array_equal(sketch.estimate(keys), expected.estimate(keys))
    assert sketch.total == expected.total


@given(parts=st.lists(whole_batches(), min_size=2, max_size=5))
def test_conservative_merge_stays_an_upper_bound(parts: list[Batch]) -> None:
    merged = counted(parts[:1])
    for part in parts[1:]:
        merged.merge(counted([part]))
    keys, counts = arrays_of(true_counts(parts))
    assert (merged.estimate(keys) >= counts).all()
    assert merged.total == counts.sum()


def test_merge_after_different_decays_keeps_the_bound() -> None:
    left, right = counted([(np.arange(40), None)]), counted([(np.arange(20, 60), None)])
    left.decay(0.3)
    right.decay(0.7)
    left.merge(right)
    truth = 0.3 * (np.arange(60) < 40) + 0.7 * (np.arange(60) >= 20)
    assert (left.estimate(np.arange(60)) >= truth * (1 - 1e-12)).all()
    assert left.total == pytest.approx(40.0)


@modes
def test_cells_neither_stall_nor_overflow_beyond_2_to_the_24_and_32(conservative: bool) -> None:
    sketch = CountMinSketch(1 << 10, conservative=conservative)
    key = np.array([7], dtype=np.int64)
    for exponent in (24, 31, 31, 31, 31):
        sketch.update(key, np.array([2.0**exponent]))
    before = sketch.estimate(key)[0]
    sketch.update(np.repeat(key, 1000))
    assert before == 2.0**24 + 4 * 2.0**31
    assert sketch.total == before + 1000
    assert before + 1000 <= sketch.estimate(key)[0] <= before + 4000  # quanta of 4 events by now, rounded up


@modes
def test_whole_counts_stay_exact_up_to_2_to_the_32(conservative: bool) -> None:
    sketch = CountMinSketch(1 << 16, conservative=conservative)  # wide, so that no cell holds two of the keys
    heavy, light = np.array([7], dtype=np.int64), np.arange(100, 110)
    sketch.update(light)
    sketch.update(heavy, np.array([2.0**32 - 2]))
    sketch.update(heavy)
    sketch.update(light)
    assert sketch.estimate(heavy)[0] == 2**32 - 1
    np.testing.assert_array_equal(sketch.estimate(light), np.full(10, 2.0))


@modes
def test_a_thousand_million_events_keep_the_error_bound(conservative: bool) -> None:
    """A Zipf(1.05) stream of 1e9 events, fed as weighted batches: est <= count + e * total / width (Cormode, 2005)."""
    items, width, rounds = 20_000, 1 << 13, 20
    rates = np.arange(1, items + 1) ** -1.05
    weights = np.floor(rates / rates.sum() * 1e9 / rounds) + 1
    sketch = CountMinSketch(width, 4, conservative=conservative)
    for _ in range(rounds):
        sketch.update(np.arange(items), weights)
    counts, estimates = rounds * weights, sketch.estimate(np.arange(items))
    assert sketch.total == counts.sum() > 0.99e9
    assert (estimates >= counts).all()
    # The bound fails for one key in e**4; one in a hundred leaves room for chance.
    assert (estimates > counts + math.e * sketch.total / width).mean() < math.exp(-4) + 0.01


def test_decay_to_nothing_and_back() -> None:
    sketch = counted([(np.arange(10), None)])
    for _ in range(400):
        sketch.decay(0.5)
    assert 0.0 <= sketch.estimate(np.arange(10)).max() < 2.0**-20
    sketch.update(np.arange(5), np.full(5, 3.0))
    np.testing.assert_allclose(sketch.estimate(np.arange(5)), 3.0, rtol=1e-6)
    assert sketch.total == pytest.approx(15.0)


@pytest.mark.parametrize("stride", [1, 64, 4096, 2**32, 2**48 + 2**20])
def test_structured_ids_do_as_well_as_random_ones(stride: int) -> None:
    events = zipf(20_000, 200_000, 1.05)
    _, counts = np.unique(events, return_counts=True)

    def error(keys: I64) -> float:
        sketch = CountMinSketch(1 << 13)
        sketch.update(keys)
        return weighted_error(sketch.log_q(np.unique(keys)), counts.astype(np.float64))

    random_ids = np.sort(np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 20_000))
    assert error(events * stride) < 1.25 * error(random_ids[events])


@pytest.mark.parametrize("wanted", [0.2, 0.05, 0.01])
def test_sized_for_reaches_the_wanted_error(wanted: float) -> None:
    events = zipf(100_000, 1_000_000, 1.05)
    keys, counts = np.unique(events, return_counts=True)
    sketch = CountMinSketch.sized_for(keys.size, wanted)
    for batch in np.array_split(events, 16):
        sketch.update(batch)
    assert weighted_error(sketch.log_q(keys), counts.astype(np.float64)) <= wanted


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (CountMinSketch(128, 3), "width 64 and 128"),
        (CountMinSketch(64, 2), "depth 3 and 2"),
        (CountMinSketch(64, 3, seed=1), "seed 0 and 1"),
        (CountMinSketch(64, 3, conservative=False), "conservative True and False"),
        (ExactCounter(), "ExactCounter"),
    ],
)
def test_merging_what_differs_names_the_difference(other: CountMinSketch, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        CountMinSketch(64, 3).merge(other)


def test_subtract_refuses_conservative_and_foreign_events() -> None:
    with pytest.raises(ValueError, match="conservative"):
        CountMinSketch(64).subtract(CountMinSketch(64))
    sketch = counted([(np.arange(5), None)], conservative=False)
    before = sketch.to_bytes()
    with pytest.raises(ValueError, match="negative"):
        sketch.subtract(counted([(np.arange(6), None)], conservative=False))
    assert sketch.to_bytes() == before


@pytest.mark.parametrize("width", [0, 1, 3, 1000, -8])
def test_width_must_be_a_power_of_two(width: int) -> None:
    with pytest.raises(ValueError, match=f"got {width}"):
        CountMinSketch(width)


def test_fill_and_bytes() -> None:
    sketch = CountMinSketch(1 << 12, 4)
    assert sketch.fill == 0.0
    sketch.update(np.arange(100))
    assert 0.9 * 100 / 4096 < sketch.fill <= 100 / 4096
    assert sketch.nbytes == 4 * 4 * 4096
    assert len(sketch.to_bytes()) <= 4 * 4 * 4096 + 4096


@modes
def test_slots_never_change(conservative: bool) -> None:
    """Constants are fixed: equal input gives these cells on every platform and in every process."""
    sketch = CountMinSketch(8, 2, conservative=conservative, seed=42)
    sketch.update(np.array([1, 2, 3, 1, -5]))
    assert sketch.cell_counts().tolist() == [[0, 1, 2, 1, 0, 0, 1, 0], [0, 2, 1, 1 + (not conservative), 0, 0, 0, 0]]


@pytest.mark.parametrize("conservative", [True, False])
def test_fading_and_merging_for_ever_rounds_up_and_by_no_more_than_the_resolution(*, conservative: bool) -> None:
    faded, truth = CountMinSketch(64, 2, conservative=conservative), 0.0
    for number in range(1, 200):
        window = CountMinSketch(64, 2, conservative=conservative)
        window.update(np.repeat(np.array([7]), 1 + 1000 * (number % 3)))
        faded.decay(0.3)
        faded.merge(CountMinSketch.from_bytes(window.to_bytes()))
        truth = 0.3 * truth + 1 + 1000 * (number % 3)
        assert truth * (1 - 1e-12) <= faded.estimate(np.array([7]))[0] <= truth * (1 + 1e-7)
    assert faded.total == pytest.approx(truth, rel=1e-9)
