from unittest.mock import patch

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.items import shard_reader as own_lines
from weir.trainer.items.ids import pack_ids
from weir.trainer.items.placement import Places
from weir.trainer.items.rows import RowSharding
from weir.trainer.items.shard_reader import OwnBytes, OwnListed, OwnPlaces, OwnRowSharding, OwnSizes, ShardSelection

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
