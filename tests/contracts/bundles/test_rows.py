import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import PADDING_KEY, IndexRows, ItemKeys
from weir.contracts.bundles.rows import FIRST_ITEM_ROW, ItemRows, tower_rows

keys = st.integers(-(2**63), 2**63 - 1).filter(bool) | st.integers(1, 9)


@given(
    st.lists(keys, unique=True, max_size=9),
    st.lists(keys | st.just(PADDING_KEY), max_size=12),
    st.integers(1, 5),
    st.integers(0, 3),
)
def test_rows_are_those_of_a_dictionary(items: list[int], history: list[int], newest: int, more: int) -> None:
    length = newest + more
    item_rows = ItemRows.of(ItemKeys(np.array(items, np.int64)))
    row_of = {key: row for row, key in enumerate(items)}
    asked = ItemKeys(np.array([history, history[::-1]], np.int64))
    assert item_rows.look_up(asked).tolist() == [[row_of.get(key, -1) for key in some] for some in asked.tolist()]
    rows, mask = item_rows.tower_inputs(asked, newest, length)
    found = [IndexRows(row[row >= 0][-newest:]) for row in item_rows.look_up(asked)]
    for same, wanted in zip(tower_rows(found, length), (rows, mask), strict=True):
        np.testing.assert_array_equal(same, wanted)
    for some, read, real in zip(asked.tolist(), rows.tolist(), mask.tolist(), strict=True):
        known = [row_of[key] + FIRST_ITEM_ROW for key in some if key in row_of]
        # Row 0 is padding; what the bundle does not know is left out, not put in the place of an item.
        assert read == ([0] * length + known[-newest:])[-length:]
        assert real == [row != 0 for row in read]
