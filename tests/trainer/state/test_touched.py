import numpy as np
import torch

from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.rows import Reader
from weir.trainer.items.table import ItemTable
from weir.trainer.state.touched import TouchedOfAll


def test_rows_of_items_and_of_embeddings_are_joined_for_each_reader() -> None:
    table, embeddings = ItemTable(8), Embeddings(torch.zeros(8, 2))
    touched = TouchedOfAll(table, embeddings)
    table.touched.mark(np.array([3, 5]))
    embeddings.touch(torch.tensor([5, 2]))
    assert touched.rows(Reader.BUNDLE).tolist() == [2, 3, 5]
    touched.clear(Reader.BUNDLE)
    assert touched.rows(Reader.BUNDLE).tolist() == []
    assert touched.rows(Reader.CHECKPOINT).tolist() == [2, 3, 5]


def test_other_questions_are_for_others() -> None:
    touched = TouchedOfAll(ItemTable(8), Embeddings(torch.zeros(8, 2)))
    assert touched.answer("touched BUNDLE")
    assert touched.answer("clear CHECKPOINT")
    assert touched.answer("left")
    assert touched.answer("clear SNAPSHOT")
    assert touched.answer("snapshot")
    assert not touched.answer("weight")
