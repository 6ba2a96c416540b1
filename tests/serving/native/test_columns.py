"""What is compiled of reading histories: the oracle is `weir.contracts.bundles.rows`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import IndexRows, ItemKeys
from weir.contracts.bundles.rows import FIRST_ITEM_ROW, ItemRows, tower_rows

PACKAGE = pytest.importorskip("weir_front", reason="needs the compiled front: make native, which needs Rust")

keys = st.integers(-9, 9) | st.integers(-(2**63), 2**63 - 1)
some = st.lists(keys, unique=True, max_size=9)


@given(some, some, st.data())
def test_rows_are_those_of_the_items(items: list[int], later: list[int], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(-1, 99), min_size=len(later), max_size=len(later)))
    wanted = data.draw(st.lists(st.sampled_from([*items, *later, 0]) | keys, max_size=12))
    own = ItemRows.of(ItemKeys(np.array(items, np.int64)))
    own = own.including(ItemKeys(np.array(later, np.int64)), IndexRows(np.array(rows, np.int64)))
    asked = ItemKeys(np.array(wanted, np.int64))
    found = PACKAGE.look_up(asked, own.keys, own.rows, own.later.keys, own.later.values)
    assert found.tolist() == own.look_up(asked).tolist()


def test_keys_without_rows_are_refused() -> None:
    none = np.empty(0, np.int64)
    with pytest.raises(ValueError, match="3 keys have 2 rows"):
        PACKAGE.look_up(none, np.arange(3), np.arange(2), none, none)
    with pytest.raises(ValueError, match="histories of 5 items have 4 rows"):
        PACKAGE.tower_inputs(np.arange(4), np.array([2, 3]), 3, 2)
    with pytest.raises(ValueError, match="histories of 4 items have 4 rows"):
        PACKAGE.tower_inputs(np.arange(4), np.array([5, -1]), 3, 2)


@given(st.lists(st.lists(st.integers(-1, 9), max_size=7), min_size=1, max_size=5), st.integers(1, 5))
def test_histories_one_after_the_other_are_read_as_those_of_a_list(histories: list[list[int]], length: int) -> None:
    rows = [IndexRows(np.array(history, np.int64)) for history in histories]
    lengths = np.array([len(history) for history in histories])
    found = PACKAGE.tower_inputs(np.concatenate(rows), lengths, length, FIRST_ITEM_ROW)
    expected = tower_rows([IndexRows(each[each >= 0][-length:]) for each in rows], length)
    for same, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(same, wanted)
