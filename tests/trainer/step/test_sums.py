"""What one rank adds up; `tests/trainer/items/tables_of_ranks.py` compares several with this."""

import math

import torch

from weir.trainer.items.embeddings import Embeddings
from weir.trainer.ranks.workers import Workers
from weir.trainer.step.sums import sum_over_ranks


def test_one_rank_copies_nothing_and_knows_the_length() -> None:
    table, rows, gradient = Embeddings(torch.zeros(8, 2)), torch.tensor([5, 2]), torch.tensor([[3e30, 0], [0, 4e30]])
    shared = [torch.ones(3), torch.ones(())]
    sums = sum_over_ranks(table, table.route(rows), gradient, shared, Workers())
    assert sums.rows is rows
    assert sums.embeddings is gradient
    assert sums.shared is shared
    # Squares of float32 would overflow.
    assert math.isclose(sums.lengths[0], 5e30, rel_tol=1e-6)
