""""""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import ItemKeys
from weir.contracts.bundles.manifest import BundleRef
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.rows import Reader, TableRows
from weir.trainer.items.table import TOO_MANY, ItemTable
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state import published
from weir.trainer.state.dirty_rows import TouchedOfAll
from weir.trainer.state.published import PublishedItems, SinceBundle, are_apart

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


REF = BundleRef(version="one", checksum="1")


def since(bound: float = 0.1) -> SinceBundle:
    touched = TouchedOfAll(ItemTable(16), Embeddings(torch.zeros(16, 2)))
    return SinceBundle(touched, TrainerConfig(publish_bound=bound))


def rows_and_left(one: SinceBundle) -> tuple[list[int], list[int]]:
    return one.touched.rows(Reader.BUNDLE).tolist(), one.touched.left().tolist()


def test_before_a_bundle_nothing_is_known() -> None:
    one = since()
    one.touched.embeddings.touch(torch.tensor([3]))
    assert not one.begins_at(REF)
    assert one.state_dict() == {}


def test_what_has_changed_since_a_bundle_is_saved_and_loaded() -> None:
    one, other = since(), since()
    one.touched.embeddings.touch(torch.tensor([9]))
    one.touched.table.left.add(ItemKeys(np.array([70])), 8)
    one.note(REF)
    one.touched.embeddings.touch(torch.tensor([5, 3]))
    one.touched.table.touched.mark(np.array([4]))
    for left in ([8, 7], [8]):
        one.touched.table.left.add(ItemKeys(np.array(left)), 8)
    assert rows_and_left(one) == ([3, 4, 5], [7, 8])
    other.touched.embeddings.touch(torch.tensor([12]))
    other.load_state_dict(one.state_dict())
    assert rows_and_left(other) == ([3, 4, 5], [7, 8])
    assert other.touched.rows(Reader.CHECKPOINT).tolist() == [12]
    assert other.begins_at(REF)
    assert not other.begins_at(REF.model_copy(update={"checksum": "2"}))
    other.load_state_dict({})
    assert (other.ref, *rows_and_left(other)) == (None, [], [])


def test_a_snapshot_takes_the_place_of_the_bundle_before_once_it_is_one() -> None:
    one, other = since(), since()
    one.note(REF)
    one.touched.embeddings.touch(torch.tensor([3, 4]))
    one.touched.table.left.add(ItemKeys(np.array([7])), 8)
    one.snapshot()
    one.touched.embeddings.touch(torch.tensor([4, 5]))
    one.touched.table.touched.mark(np.array([6]))
    one.touched.table.left.add(ItemKeys(np.array([8])), 8)
    # Until then, checkpoints say what has changed since the one before.
    other.load_state_dict(one.state_dict())
    assert (other.ref, *rows_and_left(other)) == (REF, [3, 4, 5, 6], [7, 8])
    later = REF.model_copy(update={"version": "two"})
    one.note_snapshot(later)
    assert (one.ref, *rows_and_left(one)) == (later, [4, 5, 6], [8])
    one.touched.embeddings.touch(torch.tensor([2]))
    assert rows_and_left(one) == ([2, 4, 5, 6], [8])


@pytest.mark.parametrize(("bound", "begins"), [(0.1, True), (0.2, True), (0.05, False)])
def test_with_a_smaller_bound_rows_that_were_not_touched_may_be_off(bound: float, *, begins: bool) -> None:
    one, other = since(), since(bound)
    one.note(REF)
    other.load_state_dict(one.state_dict())
    assert other.begins_at(REF) == begins


def test_where_more_than_a_quarter_has_changed_nothing_is_saved() -> None:
    one = since()
    one.note(REF)
    one.touched.embeddings.touch(torch.arange(2, 6))
    assert one.state_dict()["rows"].tolist() == [2, 3, 4, 5]
    one.touched.embeddings.touch(torch.tensor([6]))
    assert one.state_dict() == {}


def test_where_more_items_have_left_than_there_are_rows_nothing_is_saved() -> None:
    one = since()
    one.note(REF)
    one.touched.table.left.add(ItemKeys(np.arange(1, 18)), 8)
    assert one.touched.left().tolist() == [TOO_MANY]
    assert one.state_dict() == {}
