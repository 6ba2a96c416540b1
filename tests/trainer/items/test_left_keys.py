import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import ItemKeys
from weir.trainer.items.left_keys import TOO_MANY, LeftKeys
from weir.trainer.items.table import ItemTable

KEYS = st.lists(st.integers(1, 40), max_size=12)


def keys_of(values: list[int]) -> ItemKeys:
    return ItemKeys(np.array(values, np.int64))


@given(parts=st.lists(KEYS, max_size=12), most=st.integers(1, 30))
def test_it_holds_each_key_once_or_says_that_there_were_too_many(parts: list[list[int]], most: int) -> None:
    left, every = LeftKeys(), set[int]()
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
    left, later = LeftKeys(), LeftKeys()
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
    left = LeftKeys()
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
