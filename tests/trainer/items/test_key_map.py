import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.items.key_map import KeyMap
from weir.trainer.items.rows import no_rows

KEYS = np.arange(500) * (1 << 20)
"""By row; multiples of a power of two, which a poor hash puts into one slot."""

CHANGES = st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 499), max_size=120)), max_size=30)


@given(CHANGES)
def test_a_map_holds_what_a_dictionary_would(changes: list[tuple[bool, set[int]]]) -> None:
    found, held = KeyMap(KEYS, no_rows()), set[int]()
    for adds, some in changes:
        rows = np.array(sorted(some - held if adds else some & held), np.int64)
        (found.insert if adds else found.remove)(KEYS, rows)
        held = held | some if adds else held - some
        assert found.find(KEYS, KEYS).tolist() == [row if row in held else -1 for row in range(500)]
        assert found.find(KEYS, KEYS + 1).tolist() == [-1] * 500


def test_rows_that_come_and_go_for_ever_take_no_more_room() -> None:
    found, rows = KeyMap(KEYS, np.arange(100)), np.arange(100, 110)
    size = found.nbytes
    for _ in range(1000):
        found.insert(KEYS, rows)
        found.remove(KEYS, rows)
    assert found.nbytes == size
    assert found.find(KEYS, KEYS[:110]).tolist() == [*range(100), *[-1] * 10]
