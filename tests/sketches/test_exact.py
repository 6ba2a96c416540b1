import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sketches.support import F64, I64, true_counts, weighted_batches, zipf
from weir.sketches import CountMinSketch, ExactCounter

Batch = tuple[I64, F64 | None]


def counted(batches: list[Batch]) -> ExactCounter:
    counter = ExactCounter()
    for keys, weights in batches:
        counter.update(keys, weights)
    return counter


@given(batches=st.lists(weighted_batches(), max_size=6))
def test_counts_equal_a_dictionary(batches: list[Batch]) -> None:
    counter, truth = counted(batches), true_counts(batches)
    keys, counts = counter.items()
    assert keys.tolist() == sorted(truth)
    assert len(counter) == len(truth)
    np.testing.assert_allclose(counts, [truth[key] for key in keys.tolist()], rtol=1e-12)
    np.testing.assert_array_equal(counter.estimate(keys), counts)


def test_growth_keeps_every_key() -> None:
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 50_000)
    counter = ExactCounter()
    for batch in np.array_split(np.concatenate([keys, keys[::-1]]), 37):
        counter.update(batch)
    assert len(counter) == np.unique(keys).size
    np.testing.assert_array_equal(counter.estimate(keys), np.full(keys.size, 2.0))
    np.testing.assert_array_equal(counter.estimate(keys + 1), np.zeros(keys.size))


def test_keys_that_share_a_home_slot_are_told_apart() -> None:
    """In a table of 64 slots, 32 keys of the same home make the longest probe sequence there is."""
    candidates = np.arange(10_000)
    homes = ExactCounter()._home(candidates)
    same = candidates[homes == homes[0]][:32]
    counter = ExactCounter()
    counter.update(np.repeat(same, np.arange(1, 33)))
    np.testing.assert_array_equal(counter.estimate(same), np.arange(1.0, 33.0))
    assert counter.estimate(candidates[homes == homes[0]][32:40]).max() == 0.0


def test_bytes_do_not_depend_on_the_order_of_arrival() -> None:
    events = zipf(2_000, 20_000, 1.05)
    forwards, backwards = counted([(events, None)]), ExactCounter()
    for batch in np.array_split(events[::-1], 13):
        backwards.update(batch)
    assert forwards.to_bytes() == backwards.to_bytes()


@given(left=st.lists(weighted_batches(), max_size=3), right=st.lists(weighted_batches(), max_size=3))
def test_merge_adds(left: list[Batch], right: list[Batch]) -> None:
    merged, whole = counted(left), counted(left + right)
    merged.merge(counted(right))
    np.testing.assert_array_equal(merged.items()[0], whole.items()[0])
    np.testing.assert_allclose(merged.items()[1], whole.items()[1], rtol=1e-12)
    assert merged.total == whole.total


def test_merging_with_itself_doubles() -> None:
    counter = counted([(np.arange(5), None)])
    counter.merge(counter)
    np.testing.assert_array_equal(counter.estimate(np.arange(6)), [2, 2, 2, 2, 2, 0])
    assert counter.total == 10.0


def test_merging_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="CountMinSketch"):
        ExactCounter().merge(CountMinSketch(64))
