import numpy as np
import pytest
import torch

from weir.contracts import ItemKeys
from weir.contracts.bundle_manifest import BundleRef
from weir.trainer.config import TrainerConfig
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.left_keys import TOO_MANY
from weir.trainer.items.rows import Reader
from weir.trainer.items.table import ItemTable
from weir.trainer.state.since_bundle import SinceBundle
from weir.trainer.state.touched import TouchedOfAll

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
