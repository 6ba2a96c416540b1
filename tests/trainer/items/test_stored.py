from random import Random
from unittest.mock import patch

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import ItemKeys
from weir.trainer.items import stored
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.placement import Places
from weir.trainer.items.rows import TableRows, no_rows
from weir.trainer.items.stored import PlacedLines, Twins, fetched, placed, tabled
from weir.trainer.items.table import ItemTable

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
