""""""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ranks import lines_of_ranks
from tests.trainer.items.simple_table import SimpleTable
from weir.contracts import PADDING_KEY, ItemKeys
from weir.trainer.items.rows import Reader
from weir.trainer.items.table import FIRST_ITEM, PADDING, SHARED, TOO_MANY, EvictedKeys, ItemTable, LastSeen

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
            assert table.ids.kept[row] == f"id{key}"
        else:
            assert row == SHARED
    assert len(set(table.live.tolist())) == len(oracle) == len(table)
    assert table.keys[PADDING] == table.keys[SHARED] == PADDING_KEY


@given(updates)
def test_a_restored_table_is_the_same_and_goes_on_alike(history: list[tuple[list[int], int]]) -> None:
    table, _ = grown(history)
    other = ItemTable()
    other.load_state_dict({name: value.copy() for name, value in table.state_dict().items()})
    other.index()
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


# Late panes are older than what came before them; a table may be restored at any time.
steps = st.lists(
    st.tuples(
        st.lists(st.integers(1, 400), unique=True, max_size=60), st.integers(-3, 4), st.booleans(), st.booleans()
    ),
    max_size=25,
)


@given(steps, st.integers(0, 3))
def test_rows_are_given_and_taken_as_a_table_that_scans_does(
    steps: list[tuple[list[int], int, bool, bool]], scatter: int
) -> None:
    table, simple, now = ItemTable(4), SimpleTable(4), 0
    for listed, advance, expires, restarts in steps:
        now += advance
        # Consecutive keys, and keys all over the place.
        keys = np.array(listed, np.int64) * (0x9E3779B97F4A7C1 if scatter else 1)
        ids = np.array([f"é{key}" for key in listed], object)
        table.touch(keys, now)
        simple.touch(keys, now)
        if expires:
            assert table.expire(now - 3).tolist() == simple.expire(now - 3).tolist()
        assert table.admit(keys, ids, now).tolist() == simple.admit(keys, ids, now).tolist()
        if restarts:
            state, table = table.state_dict(), ItemTable()
            table.load_state_dict(state)
            table.index()
            assert table.in_use.end == table.live.max(initial=FIRST_ITEM - 1) + 1
        assert table.live.tolist() == simple.live.tolist()
        for name in ("keys", "seen_ms"):
            assert getattr(table, name).tolist() == getattr(simple, name).tolist()
        assert table.ids.kept.tolist() == simple.ids.tolist()
        asked = np.array([[0, *range(1, 400, 7)]]) * (0x9E3779B97F4A7C1 if scatter else 1)
        assert table.rows(asked).tolist() == simple.rows(asked).tolist()


@given(st.lists(st.lists(st.integers(1, 30), unique=True, max_size=8), min_size=2, max_size=8), st.data())
def test_the_rows_that_were_touched_make_a_later_table_of_an_earlier_one(
    windows: list[list[int]], data: st.DataObject
) -> None:
    table, since = ItemTable(64), data.draw(st.integers(0, len(windows) - 1))
    earlier = ItemTable(64)
    for number, listed in enumerate(windows):
        if number == since:
            earlier.load_state_dict(table.state_dict())
            table.touched.clear(Reader.CHECKPOINT)
        table.touch(np.array(listed, np.int64), number)
        table.expire(number - 1)
        table.admit(np.array(listed, np.int64), np.array([f"id{key}" for key in listed], object), number)
    rows = table.touched.rows(Reader.CHECKPOINT)
    earlier.load_rows(rows, table.state_of(rows))
    with pytest.raises(RuntimeError, match="call `index`"):
        earlier.rows(ItemKeys(np.arange(3)))
    earlier.index()
    assert earlier.rows(ItemKeys(np.arange(31))).tolist() == table.rows(ItemKeys(np.arange(31))).tolist()
    assert earlier.live.tolist() == table.live.tolist()
    for name, value in table.state_dict().items():
        assert value.tolist() == earlier.state_dict()[name].tolist()


def test_keys_looked_up_in_parts_have_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = grown([(list(range(1, 30)), 1)])
    keys = np.arange(40).reshape(5, 8)
    whole = table.rows(keys)
    monkeypatch.setattr("weir.trainer.items.table._AT_ONCE", 7)
    assert table.rows(keys).tolist() == whole.tolist()
    assert whole[0, 0] == PADDING
    assert (whole.ravel()[30:] == SHARED).all()


def test_ranks_share_a_table_that_does_what_one_alone_does(tmp_path: Path) -> None:
    kept = lines_of_ranks(3, Path(__file__).with_name("item_tables_of_ranks.py"), tmp_path)
    assert sum(kept) >= 128
    assert max(kept) - min(kept) <= 1


CALLS = st.lists(st.tuples(st.sets(st.integers(0, 29), max_size=20), st.integers(0, 40), st.booleans()), max_size=25)


@given(CALLS)
def test_rows_expire_as_a_scan_finds_them(calls: list[tuple[set[int], int, bool]]) -> None:
    times, watched = np.zeros(30, np.int64), set(range(10))
    seen = LastSeen(np.arange(10), times)
    for some, time, looks in calls:
        if looks:
            expired = [row for row in sorted(watched) if times[row] < time]
            assert seen.before(time, times).tolist() == expired
            watched -= set(expired)
            continue
        rows = np.array(sorted(row for row in some if row not in watched or times[row] < time), np.int64)
        times[rows] = time
        watched |= set(rows.tolist())
        seen.note(rows, time)
        now = np.array(sorted(watched), np.int64)
        seen.tidy(len(watched), now.copy, times)


def test_notes_that_are_out_of_date_are_dropped_now_and_then() -> None:
    times, rows = np.zeros(2000, np.int64), np.arange(2000)
    seen = LastSeen(rows, times)
    for time in range(1, 100):
        times[rows] = time
        seen.note(rows, time)
        seen.tidy(len(rows), lambda: rows, times)
        assert seen.notes <= 5 * 2000
    assert seen.before(99, times).tolist() == []
    assert seen.before(100, times).tolist() == rows.tolist()


KEYS = st.lists(st.integers(1, 40), max_size=12)


def keys_of(values: list[int]) -> ItemKeys:
    return ItemKeys(np.array(values, np.int64))


@given(parts=st.lists(KEYS, max_size=12), most=st.integers(1, 30))
def test_it_holds_each_key_once_or_says_that_there_were_too_many(parts: list[list[int]], most: int) -> None:
    left, every = EvictedKeys(), set[int]()
    for part in parts:
        left.add(keys_of(part), most)
        every |= {*part}
        found = left.keys.tolist()
        if TOO_MANY in found:
            assert len(every) > most
        else:
            assert found == sorted(every)
            assert len(found) <= 2 * most
    left.clear()
    assert left.keys.tolist() == []


@given(before=st.lists(KEYS, max_size=6), after=st.lists(KEYS, max_size=6), most=st.integers(1, 30))
def test_those_that_came_after_a_snapshot_are_what_others_would_hold_that_had_seen_no_more(
    before: list[list[int]], after: list[list[int]], most: int
) -> None:
    left, later = EvictedKeys(), EvictedKeys()
    for part in before:
        left.add(keys_of(part), most)
    left.snapshot()
    for part in after:
        left.add(keys_of(part), most)
        later.add(keys_of(part), most)
    every = {key for part in [*before, *after] for key in part}
    assert TOO_MANY in left.keys or left.keys.tolist() == sorted(every)
    left.keep_later()
    assert left.keys.tolist() == later.keys.tolist()
    left.add(keys_of([50]), most)
    later.add(keys_of([50]), most)
    assert left.keys.tolist() == later.keys.tolist()


def test_once_there_were_too_many_that_is_so_until_the_clear() -> None:
    left = EvictedKeys()
    left.add(keys_of(list(range(1, 10))), 4)
    for key in range(20, 40):
        left.add(keys_of([key]), 4)
        assert TOO_MANY in left.keys
        assert len(left.keys) <= 2 * 4 + 1
    left.clear()
    left.add(keys_of([7]), 4)
    assert left.keys.tolist() == [7]


def test_a_catalogue_that_changes_all_the_time_does_not_fill_memory() -> None:
    """Where no bundle is ever published."""
    table = ItemTable(64)
    for hour in range(40):
        keys = keys_of(list(range(1 + 30 * hour, 31 + 30 * hour)))
        table.admit(keys, np.array([f"i{key}" for key in keys], object), hour)
        table.expire(hour)
        assert len(table.left.keys) <= 2 * 64 + 30
    assert TOO_MANY in table.left.keys
