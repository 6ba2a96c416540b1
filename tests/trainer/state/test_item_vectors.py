from pathlib import Path

import torch

from tests.ranks import lines_of_ranks
from weir.trainer.config import TowerConfig
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.state.item_vectors import ItemVectors

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
