"""What the optimiser and the tower's graph cost a trainer that starts.

    OMP_NUM_THREADS=1 python -m benchmarks.trainer_start run

Each line is a new process, the median of so many. All of them load the trainer first, which is not counted.

- optimiser, PyTorch's: the first step of `torch.optim.AdamW(fused=True)` on the default tower, which loads a compiler.
- optimiser, own: the same step of `weir.trainer.step.adamw`, by the same kernel.
- tower, traced: the first export of the default tower as ONNX, where no process of this machine has traced it.
- tower, kept: the same after that.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Annotated, Final

import torch
import typer

import weir.trainer.train  # noqa: F401 - what every trainer loads
from benchmarks.harness import command_line, head, row, status
from weir.trainer.config import TowerConfig
from weir.trainer.export.tower import tower_to_onnx
from weir.trainer.step.adamw import AdamW
from weir.trainer.towers import build_tower

app = command_line(__doc__)


def theirs() -> None:
    """Make a step of PyTorch's optimiser."""
    parameters = list(build_tower(TowerConfig(), 0).parameters())
    optimizer = torch.optim.AdamW(parameters, fused=True)
    for one in parameters:
        one.grad = torch.ones_like(one)
    optimizer.step()


def own() -> None:
    """Make the same step of ours."""
    parameters = list(build_tower(TowerConfig(), 0).parameters())
    AdamW(parameters, 1e-3, 0.01).step([torch.ones_like(one) for one in parameters])


def exported() -> None:
    """Export the default tower."""
    tower_to_onnx(build_tower(TowerConfig(), 0), TowerConfig())


WAYS: Final[dict[str, Callable[[], None]]] = {
    "optimiser, PyTorch's": theirs,
    "optimiser, own": own,
    "tower, traced": exported,
    "tower, kept": exported,
}


@app.command()
def one(name: str) -> None:
    """Print, as JSON, CPU-seconds of a way and by how many bytes own memory grows; in a process of its own."""
    started, before = time.process_time(), status("RssAnon")
    WAYS[name]()
    print(json.dumps([time.process_time() - started, status("RssAnon") - before]))


def in_a_process(name: str, cache: str) -> tuple[float, float]:
    """Return what `one` prints in a new process that keeps graphs in the folder `cache`."""
    command = [sys.executable, "-m", "benchmarks.trainer_start", "one", name]
    done = subprocess.run(command, env=os.environ | {"XDG_CACHE_HOME": cache}, stdout=subprocess.PIPE, check=True)
    seconds, size = json.loads(done.stdout)
    return seconds, size


@app.command(help=__doc__)
def run(rounds: Annotated[int, typer.Option(min=1, help="processes for each line")] = 3) -> None:
    """Measure and print, a round of all ways at a time."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="weir-start-") as cache:
            for name, values in found.items():
                values.append(in_a_process(name, cache))
    head("", "CPU, s", "own memory, MB")
    for name, values in found.items():
        seconds, sizes = zip(*values, strict=True)
        row(name, f"{median(seconds):.2f}", f"{median(sizes) / 1e6:.0f}")


if __name__ == "__main__":
    app()
