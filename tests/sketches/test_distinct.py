import numpy as np
import pytest
from datasketch import HyperLogLogPlusPlus
from hypothesis import given

from tests.sketches.support import I64, key_arrays
from weir.sketches import DistinctCounter, ExactCounter
from weir.sketches.hashing import fmix64


@given(keys=key_arrays())
def test_registers_equal_those_of_one_by_one_updates(keys: I64) -> None:
    counter, peer = DistinctCounter(p=5), HyperLogLogPlusPlus(p=5, hashfunc=lambda word: word)
    counter.update(keys)
    for word in fmix64(keys.view(np.uint64)).tolist():
        peer.update(word)
    np.testing.assert_array_equal(counter._sketch.reg, peer.reg)


@pytest.mark.parametrize("distinct", [0, 1, 500, 20_000, 300_000])
def test_count_is_within_four_standard_errors(distinct: int) -> None:
    counter = DistinctCounter(p=12)
    for batch in np.array_split(np.tile(np.arange(distinct), 2), 5):
        counter.update(batch)
    assert counter.count() == pytest.approx(distinct, rel=4 * 1.04 / 2**6, abs=0.5)


def test_merge_is_the_union() -> None:
    left, right, both = DistinctCounter(), DistinctCounter(), DistinctCounter()
    left.update(np.arange(0, 6_000))
    right.update(np.arange(4_000, 10_000))
    both.update(np.arange(10_000))
    left.merge(right)
    assert left.to_bytes() == both.to_bytes()


def test_round_trip_can_be_updated_further() -> None:
    counter = DistinctCounter(p=8)
    counter.update(np.arange(1_000))
    again = DistinctCounter.from_bytes(counter.to_bytes())
    again.update(np.arange(1_000, 2_000))
    counter.update(np.arange(1_000, 2_000))
    assert again.to_bytes() == counter.to_bytes()


def test_differing_precision_and_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="14 and 12"):
        DistinctCounter().merge(DistinctCounter(p=12))
    with pytest.raises(ValueError, match="ExactCounter"):
        DistinctCounter().merge(ExactCounter())  # type: ignore[arg-type]


@pytest.mark.parametrize("p", [3, 17])
def test_precision_is_bounded(p: int) -> None:
    with pytest.raises(ValueError, match=f"got {p}"):
        DistinctCounter(p)
