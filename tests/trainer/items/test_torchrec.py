"""TorchRec as an oracle: its row-wise sharded collection, with FBGEMM's row-wise Adagrad, moves rows as ours does."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

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
