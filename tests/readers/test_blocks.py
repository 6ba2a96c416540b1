import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.readers.blocks import cuts


@given(st.lists(st.integers(0, 9)), st.integers(1, 20), st.integers(1, 5))
def test_cuts_are_full_and_within_their_bounds(sizes: list[int], limit: int, rows: int) -> None:
    found = list(cuts(np.array(sizes, np.int64), limit, rows))
    assert [place for start, stop in found for place in range(start, stop)] == list(range(len(sizes)))
    for start, stop in found:
        assert stop - start == 1 or (stop - start <= rows and sum(sizes[start:stop]) <= limit)
        assert stop == len(sizes) or stop - start == rows or sum(sizes[start : stop + 1]) > limit
