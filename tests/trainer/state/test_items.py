""""""

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from tests.ranks import lines_of_ranks
from weir.contracts import Store, hash_ids
from weir.contracts.storage.array_files import ArrayDraft
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.rows import TableRows
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TowerConfig, TrainerConfig
from weir.trainer.state import items as item_writer
from weir.trainer.state.items import ItemPaths, ItemVectors
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.towers import project

CAPACITY, DIMENSION = 64, 16
TOWER = TowerConfig(dimension=DIMENSION)


def vectors() -> ItemVectors:
    return ItemVectors(Embeddings(torch.randn(CAPACITY, DIMENSION)), None, TOWER)


def test_without_features_vectors_are_embeddings_and_the_index_has_them_as_towers_compare_them() -> None:
    items, rows = vectors(), torch.tensor([5, 2, 9])
    plain, searched = items.both(items.kept, rows)
    assert torch.equal(plain, items.embeddings.weight[rows])
    torch.testing.assert_close(searched, plain / plain.norm(dim=1, keepdim=True))


def test_no_rows_have_no_vectors() -> None:
    items = vectors()
    assert [one.shape for one in items.both(items.fetch, torch.arange(0))] == [(0, DIMENSION)] * 2


def test_ranks_read_what_one_that_has_all_reads(tmp_path: Path) -> None:
    assert lines_of_ranks(3, Path(__file__).with_name("vectors_of_ranks.py"), tmp_path) == [42, 2, 42]


def test_other_questions_are_for_others() -> None:
    assert not vectors().answer("weight")


CONFIG = TrainerConfig(device="cpu")


def with_items(count: int, workers: Workers | None = None) -> TrainerState:
    """Return a state with items, each seen at the time of its number, whose embeddings are drawn."""
    state, draw = TrainerState.fresh(CONFIG, workers=workers), torch.Generator().manual_seed(0)
    for number in range(count):
        ids = np.array([f"i{number}"], object)
        rows = state.table.admit(hash_ids(ids.tolist()), ids, number)
        state.embeddings.grow(state.table.capacity)
        state.embeddings.initialise(rows, draw)
    return state


def files_of(folder: str | Path, state: TrainerState) -> list[np.ndarray]:
    """Return what a state writes: embeddings and vectors; called as `Embeddings.fetch`."""
    count, width = len(state.table), CONFIG.tower.dimension
    drafts = [ArrayDraft(Store(str(folder)), "x.npy", (rows, width), np.float32) for rows in (2 + count, count)]
    state.writer.write(ItemPaths(*(str(draft.path) for draft in drafts)))
    return [draft.mapped() for draft in drafts]


@pytest.mark.parametrize("at_once", [1, 3, 7, 100])
@pytest.mark.parametrize("items", [1, 2, 40])
def test_files_hold_special_rows_and_items_in_the_order_of_their_rows(tmp_path: Path, items: int, at_once: int) -> None:
    state = with_items(items)
    state.table.expire(items // 3)
    live = state.table.live
    with torch.no_grad():
        wanted = state.item_vectors(TableRows(np.concatenate([[0, 1], live])))
    with patch.object(item_writer, "_AT_ONCE", at_once):
        embeddings, vectors = files_of(tmp_path, state)
    np.testing.assert_array_equal(embeddings, wanted)
    np.testing.assert_array_equal(vectors, project(wanted[2:], CONFIG.tower))


def test_ranks_write_what_one_that_has_all_writes(tmp_path: Path) -> None:
    left = lines_of_ranks(3, Path(__file__).with_name("files_of_ranks.py"), tmp_path)
    assert left == [5 + 1 + 2 + 2 + 27 + 200] * 3


def test_items_that_no_rank_writes_are_an_error(tmp_path: Path) -> None:
    state = with_items(5)
    with (
        patch.object(type(state.embeddings.places), "own", lambda _, rows: torch.arange(len(rows) - 1)),
        pytest.raises(RuntimeError, match="ranks have done 4 items of 5"),
    ):
        files_of(tmp_path, state)


def test_the_item_writer_leaves_other_calls_to_others() -> None:
    assert not with_items(1).writer.answer("weight")
