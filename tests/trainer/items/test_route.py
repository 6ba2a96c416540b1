"""A table that ranks share is the table of one rank, whatever they ask for and change; sums have the order of ranks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainer.items.places import Places
from trainer.items.route import Route
from trainer.ranks.workers import Workers

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_that_share_a_table_have_the_bits_of_one(ranks: int) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, str(Path(__file__).parent / "tables_of_ranks.py")]
    done = subprocess.run(command, env=environment, timeout=300, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_one_rank_looks_its_rows_up_and_copies_nothing_else() -> None:
    rows, lines = torch.tensor([4, 1]), torch.randn(6, 2)
    route = Route.of(rows, Places(6), Workers())
    assert torch.equal(route.fetch(lines), lines[rows])
    gradient = torch.randn(2, 2)
    found, sums = route.add(gradient)
    assert found is rows
    assert sums is gradient is route.push(gradient)
