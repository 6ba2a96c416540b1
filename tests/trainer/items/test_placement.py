""""""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.trainer.items.live import live_rows
from weir.trainer.items.placement import (
    LiveRows,
    Places,
    distinct,
    distinct_and_counts,
    distinct_and_places,
    order_of,
    where,
)
from weir.trainer.items.rows import FIRST_ITEM, TableRows

MANY = arrays(np.int64, st.integers(0, 200), elements=st.integers(0, 50) | st.integers(0, 1 << 54))


@given(MANY, st.sampled_from([torch.int32, torch.int64]))
def test_each_number_comes_once_ascending_with_the_number_and_the_places_of_all_that_are_equal(
    numbers: np.ndarray, dtype: torch.dtype
) -> None:
    given_ = torch.from_numpy(numbers % (1 << 31) if dtype == torch.int32 else numbers).to(dtype)
    expected, places, counts = np.unique(given_.numpy(), return_inverse=True, return_counts=True)
    assert distinct(given_).tolist() == expected.tolist()
    assert [one.tolist() for one in distinct_and_counts(given_)] == [expected.tolist(), counts.tolist()]
    found = distinct_and_places(given_)
    assert [one.tolist() for one in found] == [expected.tolist(), places.tolist()]
    assert {one.dtype for one in found} == {torch.int64}


@given(MANY)
def test_equal_numbers_keep_their_order(numbers: np.ndarray) -> None:
    assert order_of(torch.from_numpy(numbers)).tolist() == np.argsort(numbers, kind="stable").tolist()


def test_the_numbers_are_not_changed() -> None:
    numbers = torch.tensor([3, 1, 2, 3])
    distinct(numbers)
    distinct_and_counts(numbers)
    distinct_and_places(numbers)
    order_of(numbers)
    assert numbers.tolist() == [3, 1, 2, 3]


@given(arrays(bool, st.integers(0, 200)))
def test_where_a_mask_is_true(mask: np.ndarray) -> None:
    assert where(torch.from_numpy(mask)).tolist() == [place for place, kept in enumerate(mask) if kept]


CHANGES = st.lists(st.tuples(st.integers(0, 12), st.sets(st.integers(0, 60))), max_size=12)


@given(CHANGES)
def test_the_lowest_free_rows_are_taken_as_from_a_set(changes: list[tuple[int, set[int]]]) -> None:
    live, held = LiveRows(), set[int]()
    for count, freed in changes:
        free = (row for row in range(FIRST_ITEM, FIRST_ITEM + 1000) if row not in held)
        wanted = [next(free) for _ in range(count)]
        live, taken = live.taken(count)
        assert taken.tolist() == wanted
        held |= set(wanted)
        gone = sorted(freed & held)
        live = live.freed(TableRows(np.array(gone, np.int64)))
        held -= set(gone)
        assert len(live) == len(held)
        assert live.every().tolist() == sorted(held)
        assert live[torch.arange(len(live))].tolist() == sorted(held)
        asked = torch.arange(80).view(4, 20)
        assert live.among(asked).tolist() == [[row in held for row in line] for line in asked.tolist()]


@given(st.sets(st.integers(FIRST_ITEM, 50)))
def test_rows_are_those_that_are_not_free(rows: set[int]) -> None:
    live = live_rows(rows)
    assert live.every().tolist() == sorted(rows)
    assert len(live) == len(rows)


@given(st.sets(st.integers(FIRST_ITEM, 63)), st.integers(1, 5))
def test_each_rank_has_its_rows_in_the_order_of_its_lines(rows: set[int], ranks: int) -> None:
    live, found = live_rows(rows), list[int]()
    for rank in range(ranks):
        places = Places(64, rank, ranks)
        own = live.at(places)
        lines = places.local(own)
        assert ((lines >= 0) & (lines < len(places.here))).all()
        assert (lines.diff() > 0).all()
        found += own.tolist()
    assert sorted(found) == sorted(rows)


def test_an_index_of_any_shape_is_answered() -> None:
    live = LiveRows(10, np.array([3, 4, 8]))
    assert live[torch.tensor([[0, 1], [2, 4]])].tolist() == [[2, 5], [6, 9]]


RANKS = st.integers(1, 9)
POWERS = st.integers(4, 12).map(lambda power: 1 << power)


@given(capacity=POWERS, ranks=RANKS)
def test_every_row_is_at_one_rank_which_finds_it_among_its_lines(capacity: int, ranks: int) -> None:
    every = torch.arange(capacity)
    found = []
    for rank in range(ranks):
        places = Places(capacity, rank, ranks)
        rows = every[places.own(every)]
        assert sorted(places.local(rows).tolist()) == list(range(len(places.here)))
        assert torch.equal(places.rows_at(places.local(rows)), rows)
        found += rows.tolist()
    assert sorted(found) == every.tolist()


@given(capacity=POWERS, ranks=RANKS)
def test_places_are_a_permutation_and_ranges_follow_one_another(capacity: int, ranks: int) -> None:
    every = torch.arange(capacity)
    places = [Places(capacity, rank, ranks) for rank in range(ranks)]
    assert torch.equal(places[0].of(every).sort().values, every)
    assert torch.equal(places[0].rows(places[0].of(every)), every)
    assert [place for one in places for place in one.here] == every.tolist()
    assert max(len(one.here) for one in places) - min(len(one.here) for one in places) <= 1


@given(capacity=POWERS)
def test_when_the_table_doubles_a_row_stays_or_moves_by_the_old_capacity(capacity: int) -> None:
    every = torch.arange(capacity)
    assert torch.equal(Places(2 * capacity).of(every) % capacity, Places(capacity).of(every))


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_lowest_rows_which_are_those_of_the_oldest_items_are_spread_evenly(ranks: int) -> None:
    low = torch.arange(1 << 12)
    shares = [len(Places(1 << 20, rank, ranks).own(low)) for rank in range(ranks)]
    assert min(shares) > 0.95 * len(low) / ranks


@given(rows=st.lists(st.integers(0, 63)), ranks=RANKS)
def test_distinct_rows_ascend_by_key(rows: list[int], ranks: int) -> None:
    places = Places(64, 0, ranks)
    found, place = places.distinct(torch.tensor(rows, dtype=torch.int64))
    assert sorted(found.tolist()) == sorted(set(rows))
    assert (places.key(found).diff() > 0).all()
    assert found[place].tolist() == rows


def test_one_rank_has_all_rows_in_their_order() -> None:
    rows = torch.tensor([5, 0, 3])
    alone = Places(7)
    assert alone.local(rows) is alone.rows_at(rows) is rows
    assert alone.own(rows).tolist() == [0, 1, 2]


def test_several_ranks_share_powers_of_two_only() -> None:
    with pytest.raises(ValueError, match="capacity = 12: 3 ranks share a power of two only"):
        Places(12, 0, 3)
