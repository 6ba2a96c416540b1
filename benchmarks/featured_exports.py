"""What the export of a delta costs where item features move all items, and ranks compare those that they keep.

    OMP_NUM_THREADS=1 python -m benchmarks.featured_exports run --items 2000000     # 10 minutes, 8 GB of memory

Each line is a run of so many processes of this machine. Items have tags and a price; before each export, the vectors of
some tags move, and with them a share of the items by more than the bound. Lists are 256, trained before. Medians over
rounds, after one that is not counted. `--left 3000000`: that many other items have had rows, which are free by now.

- rank 0 alone: every item comes to rank 0, which compares it, as in the first export of a process.
- each its own: each rank compares the items that it keeps, and those that have moved come to rank 0.
- CPU: seconds of all ranks. wait: of the wall clock, for which no rank trains. own: of rank 0's own memory, at most.
"""

import json
import math
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Final

import numpy as np
import pyarrow as pa
import torch
import typer

from benchmarks.exports import train_quickly
from benchmarks.harness import F64, Peak, command_line, figures_of_ranks, head, row
from benchmarks.ranks_memory import AT_ONCE, fill
from weir.contracts import BundleManifest, Store
from weir.contracts.feature_weights import buckets_of
from weir.trainer.config import TrainerConfig
from weir.trainer.export import export_bundle
from weir.trainer.export.errors import AwaitedError
from weir.trainer.export.keeper import Keeper
from weir.trainer.items.rows import no_rows
from weir.trainer.items.table import RowChanges
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.starting import start_features
from weir.trainer.state.trainer_state import TrainerState

app = command_line(__doc__)

_BOUND: Final = 0.05
_TAGS: Final = 1000
"""That items have, each as many (`benchmarks.states.describe`)."""

_WAYS: Final = ("rank 0 alone", "each its own")


def move(state: TrainerState, tags: range) -> None:
    """Move what these tags add to items, as steps do."""
    featured, draw = state.featured or start_features(state), torch.Generator().manual_seed(tags.start)
    lists = pa.array([[f"tag{number}"] for number in tags], pa.list_(pa.string()))
    buckets = torch.from_numpy(buckets_of("tags", lists, state.config.features.buckets)[:, 0]).long()
    with torch.no_grad():
        weight = featured.tower.values.weight
        weight[buckets] += torch.randn(len(tags), weight.shape[1], generator=draw)
    state.position.step += 1


def exported(store: Store, state: TrainerState, keeper: Keeper, workers: Workers) -> tuple[list[float], float]:
    """Export; return CPU and wall seconds and own memory in MB, and on rank 0 the share of items that moved.

    Of a bundle that is made beside the stream from here on, that share is not known.
    """
    made: list[BundleManifest] = []
    cpu, wall = time.process_time(), time.perf_counter()

    def export() -> None:
        with suppress(AwaitedError):
            made.append(export_bundle(store, state, keeper=keeper))

    with Peak() as peak:
        workers.first(export, state.answer)
    spent = [time.process_time() - cpu, time.perf_counter() - wall, peak.own / 1e6]
    return spent, made[0].moved or 0.0 if made else 0.0


def figures(items: int, left: int, share: float, rounds: int, workers: Workers) -> list[list[float]]:
    """Return for each way what a rank found: medians of CPU, wall and memory, and the share of items that moved."""
    train_quickly()
    config = TrainerConfig(device="cpu", index="IVF256,SQfp16", publish_bound=_BOUND, bundle_chain=99)
    state, keeper, tags = TrainerState.fresh(config, workers=workers), Keeper(), round(share * _TAGS)
    state.position.trained_sequence = 0
    left = math.ceil(left / AT_ONCE) * AT_ONCE  # those of a window leave together
    fill(state, left + items, features=True)
    if left:
        state.counts.follow(no_rows(), np.ones((0, 1)), RowChanges(no_rows(), state.table.expire(left)))
    found: dict[str, list[list[float]]] = {way: [] for way in _WAYS}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        exported(store, state, keeper, workers)
        for number, way in enumerate(_WAYS * (rounds + 1)):
            move(state, range(number * tags, (number + 1) * tags))
            if way == _WAYS[0]:
                state.since.ref = None  # as without a bundle of this state
            spent, moved = exported(store, state, keeper, workers)
            found[way].append([*spent, moved])
    return [np.median(found[way][1:], axis=0).tolist() for way in _WAYS]


def print_all(figures_of: Callable[[Workers], object]) -> None:
    """Be a rank, and let the first print what each of them found, for `figures_of_ranks`."""
    torch.set_num_threads(1)
    with Workers.from_environment("cpu", 1200) as workers:
        found = workers.gather(torch.tensor(figures_of(workers), dtype=torch.float64))
        workers.first(lambda: print(json.dumps(found.tolist())))


@app.command()
def rank(items: int, left: int, share: float, rounds: int) -> None:
    """Be one of the ranks that `run` starts; the first prints what all of them found."""
    print_all(partial(figures, items, left, share, rounds))


@app.command()
def run(
    items: Annotated[list[int], typer.Option(help="items of the table; may be repeated")] = [2_000_000],  # noqa: B006
    ranks: Annotated[list[int], typer.Option(help="numbers of ranks; may be repeated")] = [1, 2, 4],  # noqa: B006
    left: Annotated[int, typer.Option(help="items that have left before them")] = 0,
    share: Annotated[float, typer.Option(help="of the items that move before an export")] = 0.01,
    rounds: Annotated[int, typer.Option(help="exports of each kind")] = 3,
) -> None:
    """Measure and print everything."""
    head("items", "ranks", "compared by", "moved", "CPU, s", "wait, s", "own, MB")
    for number in items:
        for count in ranks:
            found: F64 = figures_of_ranks(count, "benchmarks.featured_exports", number, left, share, rounds)
            for way, of_way in zip(_WAYS, found.transpose(1, 0, 2), strict=True):
                cpu, first = float(of_way[:, 0].sum()), of_way[0].tolist()
                row(f"{number:,}", count, way, f"{first[3]:.2%}", cpu, *first[1:3])


if __name__ == "__main__":
    app()
