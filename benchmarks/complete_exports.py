"""What a complete bundle costs where all items have moved and lists are kept, and how ranks share it.

    OMP_NUM_THREADS=1 python -m benchmarks.complete_exports run --items 2000000     # 20 minutes, 8 GB of memory

Each line is a run of so many processes of this machine; with `--machines 2` they exchange everything by gloo, as ranks
of two machines do that have a disk in common. With item features and a `publish_bound` of 0, every export is
like this: all items are written, and all are assigned to lists. Lists are as many as the catalogue calls for, trained
on fewer vectors than in a run. Medians over rounds, after the first bundle, which trains the lists.

- made: while no rank trains, as for a bounded run; or beside the stream, as for a follower. A loop of small steps of a
  model takes the place of training on each rank meanwhile, or after it.
- CPU: seconds of all ranks, and of rank 0, without these steps. wait: of the wall clock, for which no rank trains.
  published: after so many seconds. own: of rank 0's own memory, at most. files: of rank 0 in TMPDIR, at most, with
  what is kept of the bundle before. step: milliseconds on rank 0, median and 99th percentile.
"""

import tempfile
import time
from functools import partial
from typing import Annotated, Final

import numpy as np
import typer

from benchmarks.compaction import Steps
from benchmarks.exports import train_quickly
from benchmarks.featured_exports import exported, print_all
from benchmarks.harness import F64, Peak, command_line, figures_of_ranks, head, row
from benchmarks.ranks_memory import fill
from benchmarks.temporary_files import PeakFiles
from weir.contracts import Store
from weir.trainer.config import TrainerConfig
from weir.trainer.export.keeper import Keeper
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.trainer_state import TrainerState

app = command_line(__doc__)

_WAYS: Final = ("while none trains", "beside the stream")
_MOMENT: Final = 0.5
"""Seconds of steps between two looks whether the bundle is made."""


def measured(folder: str, state: TrainerState, keeper: Keeper, workers: Workers) -> list[float]:
    """Return what `published` does, and what temporary files have at most, in MB."""
    with PeakFiles(folder) as files:
        found = published(Store(folder), state, keeper, workers)
    return [*found, files.most / 1e6]


def published(store: Store, state: TrainerState, keeper: Keeper, workers: Workers) -> list[float]:
    """Export; return CPU seconds, those that training waits and until the bundle is published, memory, share and steps.

    Memory is own memory in MB, at most; the share is that of the items that have moved, on rank 0; of the milliseconds
    of steps it is median and 99th percentile.
    """
    cpu, wall, steps, stepped = time.process_time(), time.perf_counter(), Steps(), 0.0
    (_, wait, memory), moved = exported(store, state, keeper, workers)
    if workers.any(keeper.making is not None):
        with Peak() as peak:
            while workers.any(keeper.making is not None and keeper.making.running):
                stepped += stepping(steps)
        (_, last, more), moved = exported(store, state, keeper, workers)
        wait, memory = wait + last, max(memory, peak.own / 1e6, more)
    spent = [time.process_time() - cpu - stepped, wait, time.perf_counter() - wall, memory, moved]
    if not steps.seconds:
        stepping(steps)
    return [*spent, *(1000 * np.quantile(steps.seconds, [0.5, 0.99])).tolist()]


def stepping(steps: Steps) -> float:
    """Step for a moment; return the CPU seconds that it took."""
    before = time.thread_time()
    steps.run(_MOMENT)
    return time.thread_time() - before


def figures(items: int, rounds: int, index: str, workers: Workers) -> list[list[float]]:
    """Return for each way what a rank found: medians of what `measured` returns."""
    train_quickly()
    config = TrainerConfig(device="cpu", index=index)
    state, keeper = TrainerState.fresh(config, workers=workers), Keeper(large=1)
    found: dict[str, list[list[float]]] = {way: [] for way in _WAYS}
    state.position.trained_sequence = 0
    fill(state, items)
    with tempfile.TemporaryDirectory() as folder:
        exported(Store(folder), state, keeper, workers)
        for way in _WAYS * rounds:
            state.embeddings.weight.mul_(-1)
            state.position.step += 1
            state.since.ref = None  # as after steps that touch all rows
            keeper.beside = way == _WAYS[1]
            found[way].append(measured(folder, state, keeper, workers))
    return [np.median(found[way], axis=0).tolist() for way in _WAYS]


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
    memory = ("own, MB", "files, MB")
    head("items", "ranks", "made", "moved", "CPU, s", "rank 0, s", "wait, s", "published, s", *memory, "step, ms")
    for number in items:
        for count in ranks:
            found: F64 = figures_of_ranks(
                count, "benchmarks.complete_exports", number, rounds, index, machines=machines
            )
            for way, of_way in zip(_WAYS, found.transpose(1, 0, 2), strict=True):
                cpu, first = float(of_way[:, 0].sum()), of_way[0].tolist()
                steps = f"{first[5]:.2f}, {first[6]:.2f}"
                row(f"{number:,}", count, way, f"{first[4]:.0%}", cpu, *first[:4], first[7], steps)


if __name__ == "__main__":
    app()
