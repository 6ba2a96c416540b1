""""""

from random import Random
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.trainer.items.live import live_rows
from weir.contracts import ItemKeys
from weir.trainer.items import shard_reader as own_lines
from weir.trainer.items import stored
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.ids import pack_ids
from weir.trainer.items.placement import (
    LiveRows,
    Places,
    distinct,
    distinct_and_counts,
    distinct_and_places,
    order_of,
    where,
)
from weir.trainer.items.rows import FIRST_ITEM, Reader, RowSharding, TableRows, TouchedRows, no_rows
from weir.trainer.items.shard_reader import OwnBytes, OwnListed, OwnPlaces, OwnRowSharding, OwnSizes, ShardSelection
from weir.trainer.items.stored import PlacedLines, Twins, fetched, placed, tabled
from weir.trainer.items.table import ItemTable

CALLS = st.lists(
    st.one_of(st.lists(st.integers(0, 9)), st.sampled_from(Reader), st.sampled_from(["grow", "replace"])), max_size=20
)


@given(CALLS)
def test_touched_rows_are_what_a_set_of_each_reader_would_hold(calls: list[list[int] | Reader | str]) -> None:
    """The one for snapshots comes with a clear, and goes when its rows become those for bundles."""
    touched, held, capacity = TouchedRows(10), {Reader.CHECKPOINT: set[int](), Reader.BUNDLE: set[int]()}, 10
    for call in calls:
        if isinstance(call, Reader):
            touched.clear(call)
            held[call] = set()
            continue
        if call == "replace":
            if Reader.SNAPSHOT in held:
                touched.replace(Reader.BUNDLE, Reader.SNAPSHOT)
                held[Reader.BUNDLE] = held.pop(Reader.SNAPSHOT)
            continue
        if call == "grow":
            capacity *= 2
            touched.grow(capacity)
        marked = [capacity - 1] if call == "grow" else list(map(int, call))
        touched.mark(np.array(marked, np.int64))
        for rows in held.values():
            rows.update(marked)
        assert {*touched.readers} == {*held}
        for reader in Reader:
            assert touched.rows(reader).tolist() == sorted(held.get(reader, ()))


@given(st.integers(1, 6), st.integers(0, 40))
def test_each_row_has_a_line_on_one_rank(ranks: int, capacity: int) -> None:
    rows, found = TableRows(np.arange(capacity)), []
    for rank in range(ranks):
        stripes = RowSharding(rank, ranks)
        own = TableRows(rows[stripes.own(rows)])
        assert stripes.lines(own).tolist() == list(range(stripes.count(capacity)))
        assert stripes.rows(stripes.lines(own)).tolist() == own.tolist()
        assert (stripes.owners(own) == rank).all()
        found += own.tolist()
    assert sorted(found) == rows.tolist()


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


CAPACITY = 32
ORDERED = torch.arange(2.0 * CAPACITY).view(CAPACITY, 2)
"""The lines of all rows, in their order."""
IDS = st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=20)


def taken(own: ShardSelection, stored: torch.Tensor, size: int) -> torch.Tensor:
    """Return what a rank takes of a stored tensor that comes in pieces of so many lines."""
    into, wanted = torch.full((own.count, *stored.shape[1:]), 99, dtype=stored.dtype), own.wanted
    for first in range(wanted.start, wanted.stop, size):
        own.take(first, stored[first : min(first + size, wanted.stop)], into)
    return into


@given(ranks=st.integers(1, 5), by_place=st.booleans(), size=st.integers(1, CAPACITY))
def test_ranks_take_all_lines_from_either_order_however_they_are_cut(ranks: int, by_place: bool, size: int) -> None:
    stored = ORDERED[Places(CAPACITY).rows(torch.arange(CAPACITY))] if by_place else ORDERED
    looked_at = 0
    for rank in range(ranks):
        own = OwnPlaces(Places(CAPACITY, rank, ranks), by_place)
        looked_at += len(own.wanted)
        assert torch.equal(taken(own, stored, size), ORDERED[own.places.rows_at(torch.arange(own.count))])
    assert looked_at == (CAPACITY if by_place else ranks * CAPACITY)


@given(ranks=st.integers(1, 5), capacity=st.integers(1, CAPACITY), size=st.integers(1, CAPACITY))
def test_ranks_take_every_nth_line_however_they_are_cut(ranks: int, capacity: int, size: int) -> None:
    stored = ORDERED[:capacity]
    for rank in range(ranks):
        assert torch.equal(taken(OwnRowSharding(RowSharding(rank, ranks), capacity), stored, size), stored[rank::ranks])


@given(ids=IDS, ranks=st.integers(1, 5), size=st.integers(1, 9))
def test_ranks_take_the_bytes_of_their_ids_however_they_are_cut(ids: list[str | None], ranks: int, size: int) -> None:
    sizes, data = map(torch.from_numpy, pack_ids(np.array(ids, object)))
    for rank in range(ranks):
        own = OwnSizes(OwnRowSharding(RowSharding(rank, ranks), len(ids)))
        found = taken(own, sizes, size), taken(OwnBytes(own), data, size)
        for array, wanted in zip(found, pack_ids(np.array(ids[rank::ranks], object)), strict=True):
            assert array.dtype == torch.from_numpy(wanted).dtype
            assert array.tolist() == wanted.tolist()


def striped(listed: list[int], rank: int, ranks: int) -> OwnListed:
    return OwnListed(np.array(listed, np.int64), lambda rows: np.flatnonzero(RowSharding(rank, ranks).own(rows)))


@given(
    listed=st.lists(st.integers(0, CAPACITY - 1), unique=True),
    ranks=st.integers(1, 5),
    sizes=st.tuples(st.integers(1, CAPACITY), st.integers(1, CAPACITY)),
)
def test_ranks_take_the_listed_lines_that_are_theirs_however_they_are_cut(
    listed: list[int], ranks: int, sizes: tuple[int, int]
) -> None:
    stored, taken_by_any = ORDERED[listed], list[int]()
    for rank in range(ranks):
        with patch.object(own_lines, "_AT_ONCE", sizes[0]):
            own = striped(listed, rank, ranks)
        assert own.rows.tolist() == [row for row in listed if row % ranks == rank]
        assert torch.equal(taken(own, stored, sizes[1]), ORDERED[own.rows])
        taken_by_any += own.rows.tolist()
    assert sorted(taken_by_any) == sorted(listed)


@given(ids=IDS, ranks=st.integers(1, 5), size=st.integers(1, 9), start=st.integers(0, 9))
def test_ranks_take_the_bytes_of_listed_ids_however_they_are_cut(
    ids: list[str | None], ranks: int, size: int, start: int
) -> None:
    sizes, data = map(torch.from_numpy, pack_ids(np.array(ids, object)))
    listed = [start + 3 * number for number in range(len(ids))]
    for rank in range(ranks):
        own = OwnSizes(striped(listed, rank, ranks))
        found = taken(own, sizes, size), taken(OwnBytes(own), data, size)
        mine = [name for name, row in zip(ids, listed, strict=True) if row % ranks == rank]
        for array, wanted in zip(found, pack_ids(np.array(mine, object)), strict=True):
            assert array.tolist() == wanted.tolist()


"""The lines of all rows, in their order."""


def test_lines_come_in_the_order_of_places_block_by_block() -> None:
    table = Embeddings(ORDERED.clone(), torch.arange(float(CAPACITY)))
    wanted = Places(CAPACITY).rows(torch.arange(CAPACITY))
    weight, squares = placed(table)["weight"], PlacedLines(table, "squares")
    assert (weight.shape, squares.shape) == ((CAPACITY, 2), (CAPACITY,))
    assert weight.dtype == squares.dtype == torch.float32
    assert torch.equal(torch.cat(list(weight)), ORDERED[wanted])
    assert torch.equal(torch.cat(list(squares)), wanted.float())


@given(ids=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=20))
def test_a_table_comes_piece_by_piece(ids: list[str]) -> None:
    table = ItemTable(4)
    keys = np.arange(1, len(ids) + 1)
    table.admit(keys, np.array(ids, object), 7)
    with patch.object(stored, "_AT_ONCE", 5):
        some = TableRows(np.arange(table.capacity)[1::3])
        for found, stored_ones in ((tabled(table), table.state_dict()), (tabled(table, some), table.state_of(some))):
            for name, wanted in stored_ones.items():
                whole = torch.from_numpy(wanted)
                assert (found[name].dtype, found[name].shape) == (whole.dtype, tuple(whole.shape))
                assert torch.equal(torch.cat(list(found[name])), whole)


@given(
    ids=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=20),
    draw=st.randoms(use_true_random=False),
)
def test_the_bytes_of_ids_are_counted_piece_by_piece_before_they_are_read_and_after(
    ids: list[str], draw: Random
) -> None:
    table = ItemTable(4)
    admitted = table.admit(ItemKeys(np.arange(1, len(ids) + 1)), np.array(ids, object), 7)
    names = dict(zip(admitted.tolist(), ids, strict=True))
    some = draw.sample(range(table.capacity), table.capacity // 2)
    for rows in (None, TableRows(np.array(some, np.int64))):
        wanted = sum(len(names.get(row, "").encode()) for row in (range(table.capacity) if rows is None else some))
        with patch.object(stored, "_AT_ONCE", 3):
            asked, read = tabled(table, rows), tabled(table, rows)
            assert asked["id_bytes"].shape == (wanted,)
            sizes = torch.cat(list(read["id_sizes"]))
            with patch.object(table, "state_of", side_effect=[table.state_of(no_rows())] * 2):
                # Nothing is asked for but the type: all has been counted.
                assert read["id_bytes"].shape == (wanted,)
            assert int(sizes.clamp(min=0).sum()) == wanted


def test_twins_come_with_one_answer_and_whoever_reads_them_otherwise_asks_again() -> None:
    asked: list[int] = []

    def read(rows: TableRows) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(len(rows))
        return torch.from_numpy(rows), torch.from_numpy(np.repeat(rows, 2))

    with patch.object(stored, "_AT_ONCE", 5):
        twins, wanted = Twins(read, range(12)), np.repeat(np.arange(12), 2)
        for times in (1, 2):
            assert torch.cat(list(twins.first())).tolist() == list(range(12))
            assert torch.cat(list(twins.second())).tolist() == wanted.tolist()
            assert asked == [5, 5, 2] * times
        asked.clear()
        assert torch.cat(list(twins.second())).tolist() == wanted.tolist()
        assert asked == [5, 5, 2]
        asked.clear()
        next(twins.first())
        assert torch.cat(list(twins.second())).tolist() == wanted.tolist()
        assert asked == [5, 5, 2]


def test_the_embeddings_of_some_rows_come_piece_by_piece() -> None:
    table, rows = Embeddings(ORDERED.clone(), torch.arange(float(CAPACITY))), TableRows(np.arange(1, CAPACITY, 2))
    with patch.object(stored, "_AT_ONCE", 5):
        for line, lines in fetched(table, rows).items():
            wanted = table.state_dict()[line][rows]
            assert (lines.dtype, lines.shape) == (wanted.dtype, tuple(wanted.shape))
            assert [len(piece) for piece in lines] == [5, 5, 5, 1]
            assert torch.equal(torch.cat(list(lines)), wanted)
