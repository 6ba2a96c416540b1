import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.narrow import narrow


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_the_numbers_are_the_same(numbers: list[int]) -> None:
    found = narrow(np.array(numbers, np.int64))
    assert found.tolist() == numbers
    assert found.dtype == np.int32


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_a_number_that_does_not_fit_is_refused(number: int) -> None:
    with pytest.raises(OverflowError):
        narrow(np.array([0, number]))
