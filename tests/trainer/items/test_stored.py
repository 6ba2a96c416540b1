from unittest.mock import patch

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.items import stored
from trainer.items.embeddings import Embeddings
from trainer.items.places import Places
from trainer.items.stored import OwnLines, PlacedLines, placed, tabled
from trainer.items.table import ItemTable

CAPACITY = 32
ORDERED = torch.arange(2.0 * CAPACITY).view(CAPACITY, 2)
"""The lines of all rows, in their order."""


def test_lines_come_in_the_order_of_places_block_by_block() -> None:
    table = Embeddings(ORDERED.clone(), torch.arange(float(CAPACITY)))
    wanted = Places(CAPACITY).rows(torch.arange(CAPACITY))
    weight, squares = placed(table)["weight"], PlacedLines(table, "squares")
    assert (weight.shape, squares.shape) == ((CAPACITY, 2), (CAPACITY,))
    assert weight.dtype == squares.dtype == torch.float32
    assert torch.equal(torch.cat(list(weight)), ORDERED[wanted])
    assert torch.equal(torch.cat(list(squares)), wanted.float())


@given(ranks=st.integers(1, 5), by_place=st.booleans(), size=st.integers(1, CAPACITY))
def test_ranks_take_all_lines_from_either_order_however_they_are_cut(ranks: int, by_place: bool, size: int) -> None:
    stored = ORDERED[Places(CAPACITY).rows(torch.arange(CAPACITY))] if by_place else ORDERED
    looked_at = 0
    for rank in range(ranks):
        own = OwnLines(Places(CAPACITY, rank, ranks), by_place)
        into = torch.full((len(own.places.here), 2), -1.0)
        wanted = own.wanted
        looked_at += len(wanted)
        for first in range(wanted.start, wanted.stop, size):
            own.take(first, stored[first : min(first + size, wanted.stop)], into)
        assert torch.equal(into, ORDERED[own.places.rows_at(torch.arange(len(into)))])
    assert looked_at == (CAPACITY if by_place else ranks * CAPACITY)


@given(ids=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=20))
def test_a_table_comes_piece_by_piece(ids: list[str]) -> None:
    table = ItemTable(4)
    keys = np.arange(1, len(ids) + 1)
    table.admit(keys, np.array(ids, object), 7)
    with patch.object(stored, "_AT_ONCE", 5):
        found = tabled(table)
        for name, wanted in table.state_dict().items():
            whole = torch.from_numpy(wanted)
            assert (found[name].dtype, found[name].shape) == (whole.dtype, tuple(whole.shape))
            assert torch.equal(torch.cat(list(found[name])), whole)
