"""A table that ranks share is the table of one rank, whatever they ask for and change; sums have the order of ranks."""

from pathlib import Path

import pytest
import torch

from tests.ranks import run_on_ranks
from weir.trainer.items.places import Places
from weir.trainer.items.route import Route
from weir.trainer.ranks.workers import Workers


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_that_share_a_table_have_the_bits_of_one(ranks: int) -> None:
    run_on_ranks(ranks, Path(__file__).with_name("tables_of_ranks.py"), seconds=300)


def test_one_rank_looks_its_rows_up_and_copies_nothing_else() -> None:
    rows, lines = torch.tensor([4, 1]), torch.randn(6, 2)
    route = Route.of(rows, Places(6), Workers())
    assert torch.equal(route.fetch(lines), lines[rows])
    gradient = torch.randn(2, 2)
    found, sums = route.add(gradient)
    assert found is rows
    assert sums is gradient is route.push(gradient)
