import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from contracts import PADDING_KEY
from trainer.items.table import FIRST_ITEM, PADDING, SHARED, ItemTable

# A history of updates: at each time some keys occur, and what is older than a limit expires first.
updates = st.lists(st.tuples(st.lists(st.integers(1, 40), unique=True, max_size=20), st.integers(0, 5)), max_size=12)


def grown(history: list[tuple[list[int], int]], capacity: int = 4) -> tuple[ItemTable, dict[int, int]]:
    """Return a table and, from plain Python, the time each of its keys was last seen."""
    table, oracle, now = ItemTable(capacity), dict[int, int](), 0
    for listed, advance in history:
        now += advance
        keys = np.array(sorted(listed), np.int64)
        oracle.update({key: now for key in listed if key in oracle})
        table.touch(keys, now)
        oracle = {key: seen for key, seen in oracle.items() if seen >= now - 3}
        table.expire(now - 3)
        oracle.update(dict.fromkeys(listed, now))
        table.admit(keys, np.array([f"id{key}" for key in keys], object), now)
    return table, oracle


@given(updates)
def test_the_table_holds_what_a_dictionary_would(history: list[tuple[list[int], int]]) -> None:
    table, oracle = grown(history)
    assert dict(zip(table.keys[table.live].tolist(), table.seen_ms[table.live].tolist(), strict=True)) == oracle
    asked = np.arange(0, 41)
    rows = table.rows(asked)
    for key, row in zip(asked.tolist(), rows.tolist(), strict=True):
        if key == PADDING_KEY:
            assert row == PADDING
        elif key in oracle:
            assert row >= FIRST_ITEM
            assert table.keys[row] == key
            assert table.ids[row] == f"id{key}"
        else:
            assert row == SHARED
    assert len(set(table.live.tolist())) == len(oracle) == len(table)
    assert table.keys[PADDING] == table.keys[SHARED] == PADDING_KEY


@given(updates)
def test_a_restored_table_is_the_same_and_goes_on_alike(history: list[tuple[list[int], int]]) -> None:
    table, _ = grown(history)
    other = ItemTable()
    other.load_state_dict({name: value.copy() for name, value in table.state_dict().items()})
    more = np.arange(100, 120)
    ids = np.array([str(key) for key in more], object)
    assert table.admit(more, ids, 99).tolist() == other.admit(more, ids, 99).tolist()
    for name, value in table.state_dict().items():
        assert value.tolist() == other.state_dict()[name].tolist()


def test_rows_are_reused_and_capacity_doubles_only_when_all_are_taken() -> None:
    table = ItemTable(8)
    first = table.admit(np.arange(1, 7), np.array(list("abcdef"), object), 0)
    assert first.tolist() == [2, 3, 4, 5, 6, 7]
    table.touch(np.array([1, 2, 3]), 10)
    assert table.expire(5).tolist() == [5, 6, 7]
    assert table.admit(np.array([50, 60]), np.array(["x", "y"], object), 10).tolist() == [5, 6]
    assert table.capacity == 8
    assert table.admit(np.arange(70, 90), np.full(20, "z", object), 10).tolist() == list(range(7, 27))
    assert table.capacity == 32


def test_lookup_keeps_the_shape_asked_for() -> None:
    table = ItemTable(8)
    assert table.rows(np.array([[0, 5], [5, 0]])).tolist() == [[PADDING, SHARED], [SHARED, PADDING]]
    table.admit(np.array([5]), np.array(["e"], object), 0)
    assert table.rows(np.array([[0, 5], [6, 0]])).tolist() == [[0, 2], [1, 0]]
