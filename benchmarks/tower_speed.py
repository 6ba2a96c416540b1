"""The CPU of the user tower alone, on one thread, in microseconds per history.

    OMP_NUM_THREADS=1 python -m benchmarks.tower_speed train       # two minutes, most of them to compile
    OMP_NUM_THREADS=1 python -m benchmarks.tower_speed serve

`train`: look-up, forward and backward, plain, compiled, and with bfloat16. All variants take turns on the same
histories, whose items follow Zipf's law; figures are medians of the turns, the last column is against float32 in the
same turn. `serve`: the exported graph as servers run it, by how many queries are answered at once.
"""

import time
from itertools import product
from typing import Annotated, Final, get_args

import numpy as np
import torch
import typer
from torch import Tensor

from benchmarks.harness import command_line, head, row
from weir.serving.tower import Tower as Served
from weir.trainer.config import TowerConfig
from weir.trainer.export.tower import tower_to_onnx
from weir.trainer.ranks.allocator import keep_freed_memory
from weir.trainer.step.lookup import Lookup
from weir.trainer.step.placed import Placed
from weir.trainer.towers import build_tower
from weir.trainer.towers.in_training import Forward, Precision, in_training

app = command_line(__doc__)

_ITEMS: Final = 3500
"""Distinct items of the histories, as in a batch of MovieLens-1M."""


def seconds_of(forward: Forward, items: Tensor, places: Tensor, parameters: list[Tensor]) -> float:
    """Return the CPU seconds of a forward and a backward of histories at `places` (n, L) among `items` (m, d)."""
    mask = torch.ones(places.shape, dtype=torch.bool)
    mask[:, : places.shape[1] // 3] = False
    started = time.process_time()
    read = forward(Placed(Lookup(items), places), mask)
    torch.autograd.grad(read.sum(), [items, *parameters], allow_unused=True)
    return time.process_time() - started


@app.command()
def train(
    batch: Annotated[int, typer.Option(help="histories of a turn")] = 1024,
    turns: Annotated[int, typer.Option(help="times that each variant is measured")] = 9,
    kind: Annotated[str, typer.Option(help="tower")] = "recency",
    layers: Annotated[int, typer.Option(min=1, help="its layers")] = 1,
) -> None:
    """Measure what a step spends in the tower."""
    torch.set_num_threads(1)
    config = TowerConfig(kind=kind, layers=layers)
    tower = build_tower(config, 0).train()
    draw = torch.Generator().manual_seed(0)
    items = torch.randn(_ITEMS, config.dimension, generator=draw).requires_grad_()
    popularity = 1 / torch.arange(1, _ITEMS + 1)
    drawn = torch.multinomial(popularity, batch * config.history_length, replacement=True, generator=draw)
    places = drawn.view(batch, config.history_length)
    keep_freed_memory()
    precisions: tuple[Precision, ...] = get_args(Precision)
    found: dict[tuple[bool, Precision], list[float]] = {how: [] for how in product((False, True), precisions)}
    for turn in range(turns + 1):
        for (is_compiled, precision), seconds in found.items():
            forward = in_training(tower, config, compiled=is_compiled, precision=precision)
            spent = seconds_of(forward, items, places, list(tower.parameters()))
            if turn:  # the first one is slower
                seconds.append(1e6 * spent / batch)
    head("tower", "numbers", "CPU, us per history", "of plain float32")
    for (is_compiled, precision), mine in found.items():
        ratio = np.median([one / other for one, other in zip(mine, found[False, "float32"], strict=True)])
        row("compiled" if is_compiled else "plain", precision, float(np.median(mine)), float(ratio))


@app.command()
def serve(
    batch: Annotated[list[int], typer.Option(min=1, help="queries that are answered at once")] = [1, 8, 32],  # noqa: B006
    turns: Annotated[int, typer.Option(min=1, help="times that each is measured")] = 300,
    kind: Annotated[list[str], typer.Option(help="towers")] = ["recency", "sasrec", "esasrec"],  # noqa: B006
) -> None:
    """Measure what a server spends in the tower."""
    head("tower", *(f"{count} at once" for count in batch))
    for one in kind:
        config = TowerConfig(kind=one)
        row(
            one,
            *(served(Served(tower_to_onnx(build_tower(config, 0), config)), config, count, turns) for count in batch),
        )


def served(tower: Served, config: TowerConfig, count: int, turns: int) -> float:
    """Return the median CPU microseconds of a query, so many of them at once."""
    history = np.random.default_rng(0).normal(size=(count, config.history_length, config.dimension))
    given, spent = (history.astype(np.float32), np.ones(history.shape[:2], np.bool_)), list[float]()
    for _ in range(turns):
        started = time.process_time()
        tower(*given)
        spent.append(time.process_time() - started)
    return 1e6 * float(np.median(spent)) / count


if __name__ == "__main__":
    app()
