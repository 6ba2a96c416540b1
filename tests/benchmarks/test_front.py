"""Histories one after the other are what the tower reads of each."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.front import tower_inputs
from contracts import IndexRows
from contracts.item_rows import tower_rows

HISTORIES = st.lists(st.lists(st.integers(-1, 9), max_size=7), min_size=1, max_size=5)


@given(HISTORIES, st.integers(1, 5))
def test_flat_histories_are_read_as_those_of_each_query(histories: list[list[int]], newest: int) -> None:
    rows = [IndexRows(np.array(history, np.int64)) for history in histories]
    inputs, mask = tower_inputs(
        IndexRows(np.concatenate(rows)), np.array([len(history) for history in histories]), newest
    )
    expected, there = tower_rows([IndexRows(each[each >= 0][-newest:]) for each in rows], newest)
    np.testing.assert_array_equal(inputs, expected)
    np.testing.assert_array_equal(mask, there)
