import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts.ascending import ascending


@given(st.lists(st.integers(-5, 5), max_size=12))
def test_each_number_is_there_once_in_ascending_order(values: list[int]) -> None:
    given_ones = np.array(values, np.int64)
    assert ascending(given_ones).tolist() == sorted(set(values))
    assert given_ones.tolist() == values
