""""""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import ItemKeys
from weir.trainer.items.key_lookup import KeyMap, KeyShare
from weir.trainer.items.rows import TableRows, no_rows
from weir.trainer.ranks.workers import Workers

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


EVERY = ItemKeys(np.arange(1, 400) * np.int64(0x9E3779B97F4A7C1))
SHARE_CHANGES = st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 398), max_size=150)), max_size=20)


@given(SHARE_CHANGES)
def test_a_share_holds_what_a_dictionary_would(changes: list[tuple[bool, set[int]]]) -> None:
    share, held = KeyShare(Workers()), dict[int, int]()
    for turn, (adds, some) in enumerate(changes):
        chosen = sorted(some - held.keys() if adds else some & held.keys())
        rows = TableRows(np.array([7 * number + turn for number in chosen], np.int64))
        if adds:
            share.insert(EVERY[chosen], rows)
            held |= dict(zip(chosen, rows.tolist(), strict=True))
        else:
            share.remove(EVERY[chosen])
            held = {number: row for number, row in held.items() if number not in chosen}
        wanted = [held.get(number, -1) for number in range(len(EVERY))]
        assert share.find(EVERY).tolist() == wanted
        assert share.find_alike(EVERY).tolist() == wanted


@given(st.integers(1, 5), st.sets(st.integers(0, 398)))
def test_each_key_is_known_to_one_rank(ranks: int, some: set[int]) -> None:
    chosen = sorted(some)
    shares = [KeyShare(Workers(rank, ranks)) for rank in range(ranks)]
    for share in shares:
        share.insert(EVERY[chosen], TableRows(np.array(chosen, np.int64)))
    found = np.array([share._find(EVERY) for share in shares])
    assert (found >= 0).sum(0).tolist() == [number in some for number in range(len(EVERY))]
    assert found.max(0)[chosen].tolist() == chosen


def test_keys_that_come_and_go_for_ever_take_no_more_room() -> None:
    share = KeyShare(Workers())
    share.insert(EVERY[:100], TableRows(np.arange(100)))
    share.insert(EVERY[100:110], TableRows(np.arange(10)))
    size = share.nbytes
    for _ in range(1000):
        share.remove(EVERY[100:110])
        share.insert(EVERY[100:110], TableRows(np.arange(10)))
    assert share.nbytes == size
