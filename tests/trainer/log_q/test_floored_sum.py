import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.log_q.floored_sum import FlooredSum

VALUES = st.lists(st.one_of(st.just(0.0), st.floats(1e-310, 1e-290), st.floats(1e-9, 1e9)), max_size=40)


def summed(values: list[float], scale: float, floor: float) -> float:
    return sum(max(value * scale, floor) for value in values)


@given(VALUES, VALUES, st.floats(1e-6, 1e3), st.floats(1e-3, 1e3))
def test_it_is_the_sum_of_what_is_left_each_raised_to_the_floor(
    kept: list[float], gone: list[float], scale: float, floor: float
) -> None:
    sums = FlooredSum()
    sums.add(np.array(gone))
    sums.add(np.array(kept))
    sums.remove(np.array(gone))
    found, wanted = sums.total(scale, floor), summed(kept, scale, floor)
    # Too small by what is taken together, in the bin that the floor cuts.
    assert wanted * (1 - 2**-12) <= found <= wanted * (1 + 1e-12)
    cut = [value for value in kept if 1 - 2**-10 < value * scale / floor < 1 + 2**-10]
    if not cut:
        assert found == pytest.approx(wanted, rel=1e-9)


@given(VALUES, VALUES, st.floats(1e-6, 1e3))
def test_the_same_values_give_the_same_bits_whatever_came_and_went(
    kept: list[float], gone: list[float], scale: float
) -> None:
    sums, alone = FlooredSum(), FlooredSum()
    sums.add(np.array(kept[::2]))
    sums.add(np.array(gone))
    sums.remove(np.array(gone[1:]))
    sums.add(np.array(kept[1::2]))
    sums.remove(np.array(gone[:1]))
    alone.add(np.array(kept))
    assert sums.total(scale, 0.5) == alone.total(scale, 0.5)


@given(VALUES, VALUES, st.integers(1, 4), st.floats(1e-6, 1e3))
def test_several_have_the_bits_of_one_though_one_removes_what_another_added(
    kept: list[float], gone: list[float], count: int, scale: float
) -> None:
    sums, alone = [FlooredSum() for _ in range(count)], FlooredSum()
    for number, value in enumerate(kept + gone):
        sums[number % count].add(np.array([value]))
    for number, value in enumerate(gone):
        sums[(number + len(gone)) % count].remove(np.array([value]))
    alone.add(np.array(kept))
    joined = FlooredSum.of(np.concatenate([one.bins for one in sums]))
    assert joined.total(scale, 0.5) == alone.total(scale, 0.5)


def test_values_of_one_bin_that_came_here_and_went_there_leave_their_difference() -> None:
    here, there = FlooredSum(), FlooredSum()
    here.add(np.array([1.0]))
    here.remove(np.array([1.0 + 2**-20]))
    there.add(np.array([1.0 + 2**-20]))
    there.add(np.array([1.0]))
    assert FlooredSum.of(np.concatenate([here.bins, there.bins])).total(1.0, 0.0) == 2.0


def test_the_bins_of_values_that_lie_far_apart_are_made_when_they_come() -> None:
    sums = FlooredSum()
    for value in (1.0, 2.0**40, 2.0**-40, 3.0):
        sums.add(np.array([value]))
    assert sums.total(1.0, 0.0) == 4 + 2.0**40 + 2.0**-40
    assert sums.total(2.0, 10.0) == 30 + 2.0**41


def test_without_values_it_is_nothing() -> None:
    assert FlooredSum().total(1.0, 0.5) == 0
