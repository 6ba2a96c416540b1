import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from weir.trainer.items.distinct import distinct, distinct_and_counts, distinct_and_places, order_of, where

MANY = arrays(np.int64, st.integers(0, 200), elements=st.integers(0, 50) | st.integers(0, 1 << 54))


@given(MANY, st.sampled_from([torch.int32, torch.int64]))
def test_each_number_comes_once_ascending_with_the_number_and_the_places_of_all_that_are_equal(
    numbers: np.ndarray, dtype: torch.dtype
) -> None:
    given_ = torch.from_numpy(numbers % (1 << 31) if dtype == torch.int32 else numbers).to(dtype)
    expected, places, counts = np.unique(given_.numpy(), return_inverse=True, return_counts=True)
    assert distinct(given_).tolist() == expected.tolist()
    assert [one.tolist() for one in distinct_and_counts(given_)] == [expected.tolist(), counts.tolist()]
    found = distinct_and_places(given_)
    assert [one.tolist() for one in found] == [expected.tolist(), places.tolist()]
    assert {one.dtype for one in found} == {torch.int64}


@given(MANY)
def test_equal_numbers_keep_their_order(numbers: np.ndarray) -> None:
    assert order_of(torch.from_numpy(numbers)).tolist() == np.argsort(numbers, kind="stable").tolist()


def test_the_numbers_are_not_changed() -> None:
    numbers = torch.tensor([3, 1, 2, 3])
    distinct(numbers)
    distinct_and_counts(numbers)
    distinct_and_places(numbers)
    order_of(numbers)
    assert numbers.tolist() == [3, 1, 2, 3]


@given(arrays(bool, st.integers(0, 200)))
def test_where_a_mask_is_true(mask: np.ndarray) -> None:
    assert where(torch.from_numpy(mask)).tolist() == [place for place, kept in enumerate(mask) if kept]
