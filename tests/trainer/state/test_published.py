from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import ItemKeys
from weir.trainer.config import TrainerConfig
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.rows import TableRows
from weir.trainer.items.table import ItemTable
from weir.trainer.state import published
from weir.trainer.state.published import PublishedItems, are_apart

DIMENSION = 3


def parts(items: int, bound: float, *, cosine: bool = True) -> tuple[ItemTable, Embeddings, PublishedItems]:
    """Return a table with so many items, from row 2 on, and random embeddings."""
    table = ItemTable(8)
    keys = np.arange(1, items + 1)
    table.admit(ItemKeys(keys), np.array([f"i{key}" for key in keys], object), 0)
    weight = torch.randn(table.capacity, DIMENSION, generator=torch.Generator().manual_seed(items))
    config = TrainerConfig.model_validate({"publish_bound": bound, "tower": {"normalised": cosine}})
    return table, (embeddings := Embeddings(weight)), PublishedItems(table, embeddings, config)


def take(items: PublishedItems) -> None:
    rows = items.table.live
    items.take(rows, items.embeddings.weight[rows].numpy())


@given(
    st.integers(1, 40),
    st.floats(0, 0.3),
    st.booleans(),
    st.integers(1, 9),
    st.integers(0, 2**32 - 1),
)
def test_those_have_moved_that_are_off_by_more_than_the_bound_as_embeddings_or_vectors(
    count: int, bound: float, cosine: bool, at_once: int, seed: int
) -> None:
    table, embeddings, items = parts(count, bound, cosine=cosine)
    take(items)
    before = embeddings.weight.double().clone()
    draw = torch.Generator().manual_seed(seed)
    embeddings.weight += 0.2 * torch.rand(len(before), 1, generator=draw) * torch.randn(before.shape, generator=draw)
    with patch.object(published, "_AT_ONCE", at_once):
        moved = items.moved(embeddings.kept).tolist()
    after = embeddings.weight.double()
    for row in table.live.tolist():
        pairs = [(before[row], after[row])]
        if cosine:
            pairs.append((before[row] / before[row].norm(), after[row] / after[row].norm()))
        off = max(float((new - old).norm() / old.norm()) for old, new in pairs)
        assert (row in moved) == (off > bound) or abs(off - bound) < 1e-5
    assert set(moved) <= set(table.live.tolist())


def test_nothing_has_moved_where_nothing_changed_and_what_is_not_a_number_has() -> None:
    _, embeddings, items = parts(1, 0.0)
    take(items)
    assert items.moved(embeddings.kept).tolist() == []
    embeddings.weight[2, 1] = torch.nan
    assert items.moved(embeddings.kept).tolist() == [2]


def test_what_is_published_later_takes_the_place_of_what_was() -> None:
    _, embeddings, items = parts(5, 0.01)
    take(items)
    embeddings.weight += 1
    items.take(TableRows(np.array([4, 3])), embeddings.weight[[4, 3]].numpy())
    assert items.moved(embeddings.kept).tolist() == [2, 5, 6]


def test_rows_without_an_item_do_not_move() -> None:
    table, embeddings, items = parts(5, 0.01)
    take(items)
    table.touch(ItemKeys(np.array([1, 2, 4, 5])), 9)
    assert table.expire(5).tolist() == [4]
    embeddings.weight += 1
    assert items.moved(embeddings.kept).tolist() == [2, 3, 5, 6]


def test_it_is_not_known_before_it_is_taken_nor_once_the_table_has_grown() -> None:
    table, embeddings, items = parts(5, 0.01)
    assert not items.is_known
    take(items)
    assert items.is_known
    embeddings.grow(2 * table.capacity)
    assert not items.is_known
    take(items)
    assert items.is_known
    assert items.moved(embeddings.kept).tolist() == []


def test_other_questions_are_for_others() -> None:
    _, embeddings, items = parts(5, 0.01)
    assert items.answer("take", embeddings.kept)
    assert items.answer("moved", embeddings.kept)
    assert not items.answer("touched BUNDLE", embeddings.kept)


@pytest.mark.parametrize(("off", "apart"), [(0.0, False), (0.09, False), (0.11, True), (np.nan, True)])
def test_distances_are_relative_to_the_length_before(off: float, apart: bool) -> None:
    before = np.array([[0.0, 10.0]], np.float32)
    assert are_apart(before, before + np.array([[10 * off, 0.0]], np.float32), 0.1).tolist() == [apart]
