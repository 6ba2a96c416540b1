"""Item embeddings and their exchange against TorchRec's row-wise sharded collection, and against one rank."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ranks import run_on_ranks
from weir.trainer.items.embeddings import Embeddings, Route
from weir.trainer.items.placement import Places
from weir.trainer.items.table import PADDING, SHARED
from weir.trainer.ranks.workers import Workers

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(
    find_spec("torchrec") is None or find_spec("fbgemm_gpu") is None,
    reason="needs torchrec and fbgemm-gpu-cpu, 1.8 for torch 2.13",
)
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_same_gradients_move_torchrecs_rows_to_the_same_vectors(ranks: int) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, *launcher, str(Path(__file__).parent / "torchrec_of_ranks.py")]
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, timeout=300, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def fresh(capacity: int = 6, dimension: int = 4) -> Embeddings:
    cpu = torch.device("cpu")
    return Embeddings.fresh(capacity, dimension, torch.Generator().manual_seed(1), cpu, torch.float64)


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.integers(0, 5), unique=True, min_size=1), min_size=1, max_size=8),
    st.floats(0.01, 1),
    st.sampled_from([1.0, 0.9]),
    st.sampled_from([0.0, 0.3]),
)
def test_descent_is_adagrad_with_one_number_per_row_that_may_forget_and_decay(
    touched: list[list[int]], rate: float, memory: float, decay: float
) -> None:
    table = fresh()
    weight, squares = table.weight.numpy().copy(), np.zeros(6)
    draw = np.random.default_rng(0)
    for rows in touched:
        gradient = draw.normal(size=(len(rows), 4))
        table.adagrad_step(torch.tensor(rows), torch.from_numpy(gradient), rate, memory, decay)
        for row, slope in zip(rows, gradient, strict=True):
            if row != PADDING:
                slope = slope + decay * weight[row]  # noqa: PLW2901
                squares[row] = memory * squares[row] + np.mean(slope**2)
                # The 1e-10 shows in a weight that comes to lie near 0.
                weight[row] -= rate * slope / (np.sqrt(squares[row]) + 1e-10)
    np.testing.assert_allclose(table.weight.numpy(), weight, rtol=1e-7)
    assert not table.weight[PADDING].any()


def test_steps_of_a_row_that_forgets_do_not_shrink_for_ever() -> None:
    moved = {}
    for memory in (1.0, 0.99):
        table, slope = fresh(), torch.ones(1, 4, dtype=torch.float64)
        for _ in range(5000):
            before = table.weight[2].clone()
            table.adagrad_step(torch.tensor([2]), slope, 0.1, memory)
        moved[memory] = float((table.weight[2] - before).abs().max())
    np.testing.assert_allclose(moved[1.0], 0.1 / 5000**0.5)
    np.testing.assert_allclose(moved[0.99], 0.1 * 0.01**0.5)


def test_growth_keeps_rows_and_reuse_forgets_them() -> None:
    table = fresh()
    table.adagrad_step(torch.tensor([SHARED, 2]), torch.ones(2, 4, dtype=torch.float64), 0.1)
    before = table.weight.clone()
    table.grow(12)
    assert torch.equal(table.weight[:6], before)
    assert not table.weight[6:].any()
    table.initialise(np.array([2, 9]), torch.Generator().manual_seed(2))
    assert table.squares[[2, 9]].tolist() == [0, 0]
    assert table.squares[SHARED] > 0
    assert (table.weight[[2, 9]] != 0).all()
    assert torch.equal(table.weight[SHARED], before[SHARED])


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_new_rows_are_of_a_given_length_on_average(scale: float) -> None:
    table = Embeddings.fresh(4000, 64, torch.Generator(), torch.device("cpu"), torch.float32, scale=scale)
    assert abs(float(table.weight[SHARED].norm()) / scale - 1) < 0.3
    table.initialise(np.arange(2, 4000), torch.Generator().manual_seed(3), scale)
    assert abs(float(table.weight[2:].norm(dim=1).mean()) / scale - 1) < 0.02


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
