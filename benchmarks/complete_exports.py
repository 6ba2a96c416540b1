"""What a complete bundle costs where all items have moved and lists are kept, and how ranks share it.

    OMP_NUM_THREADS=1 python -m benchmarks.complete_exports run --items 2000000     # 10 minutes, 8 GB of memory

Each line is a run of so many processes of this machine; with `--machines 2` they exchange everything by gloo, as ranks
of two machines do that have a disk in common. With item features and a `publish_bound` of 0, every export is
like this: all items are written, and all are assigned to lists. Lists are as many as the catalogue calls for, trained
on fewer vectors than in a run. Medians over rounds, after the first bundle, which trains the lists.

- CPU: seconds of all ranks, and of rank 0. wait: of the wall clock, for which no rank trains. own: of rank 0's own
  memory, at most.
"""

import tempfile
from functools import partial
from typing import Annotated

import numpy as np
import typer

from benchmarks.exports import train_quickly
from benchmarks.featured_exports import exported, print_all
from benchmarks.harness import command_line, figures_of_ranks, head, row
from benchmarks.ranks_memory import fill
from contracts import Store
from trainer.config import TrainerConfig
from trainer.export.keeper import Keeper
from trainer.ranks.workers import Workers
from trainer.state.trainer_state import TrainerState

app = command_line(__doc__)


def figures(items: int, rounds: int, index: str, workers: Workers) -> list[float]:
    """Return what a rank found: medians of CPU and wall seconds and own memory, and the share of items that moved."""
    train_quickly()
    config = TrainerConfig(device="cpu", index=index)
    state, keeper, found = TrainerState.fresh(config, workers=workers), Keeper(), []
    state.position.trained_sequence = 0
    fill(state, items)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds + 1):
            spent, moved = exported(Store(folder), state, keeper, workers)
            found.append([*spent, moved])
            state.embeddings.weight.mul_(-1)
            state.position.step += 1
            state.since.ref = None  # as after steps that touch all rows
    medians: list[float] = np.median(found[1:], axis=0).tolist()
    return medians


@app.command()
def rank(items: int, rounds: int, index: str) -> None:
    """Be one of the ranks that `run` starts; the first prints what all of them found."""
    print_all(partial(figures, items, rounds, index))


@app.command()
def run(
    items: Annotated[list[int], typer.Option(help="items of the table; may be repeated")] = [2_000_000],  # noqa: B006
    ranks: Annotated[list[int], typer.Option(help="numbers of ranks; may be repeated")] = [1, 2, 4],  # noqa: B006
    rounds: Annotated[int, typer.Option(help="complete bundles after the first")] = 3,
    index: Annotated[str, typer.Option(help="as in the settings")] = "auto",
    machines: Annotated[int, typer.Option(help="that ranks take themselves to be on")] = 1,
) -> None:
    """Measure and print everything."""
    head("items", "ranks", "moved", "CPU, s", "rank 0, s", "wait, s", "own, MB")
    for number in items:
        for count in ranks:
            found = figures_of_ranks(count, "benchmarks.complete_exports", number, rounds, index, machines=machines)
            row(f"{number:,}", count, f"{found[0, 3]:.0%}", float(found[:, 0].sum()), *found[0, :3].tolist())


if __name__ == "__main__":
    app()
