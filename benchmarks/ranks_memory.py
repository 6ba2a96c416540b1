"""What each rank holds of a model with so many items, and what testing, saving, exporting and loading it add.

    OMP_NUM_THREADS=1 python -m benchmarks.ranks_memory run --items 20000000 --ranks 4     # 10 minutes, 14 GB of memory

Each line is a run of so many processes of this machine. Figures are the most of all ranks, in MB of resident memory.

- held: of the state with all items: embeddings, ids (of 12 bytes), keys, times, counts, and what finds them; with
  `--features`, their features, too.
- growing, testing, saving: what is needed besides while the table grows to this size, while 100 events with histories
  of 50 are ranked against all items, and while a whole checkpoint is saved.
- saving a delta: of as many rows as `--changed` says, whose embeddings have changed since the whole checkpoint.
- exporting, kept: what a complete bundle needs of a process's own memory while rank 0 makes it, and what stays for the
  next one; libraries have been loaded for a bundle of a thousand items. mapped: pages of files, at most, of which the
  kernel keeps what there is room for. The index has 256 lists, so that training them is quick.
- loading: what a process needs for the checkpoint, the delta included, with what it holds then.
- sent in the test: to other ranks.
- CPU of the test, of the export: seconds of all ranks. wait: seconds for which no rank trains, as it is exported.
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import torch
import typer

from benchmarks.footprint import PEAK, manifest_of
from benchmarks.harness import Peak, command_line, figures_of_ranks, head, row, status
from benchmarks.sharded import Counted
from benchmarks.states import admit, describe
from weir.contracts import ItemKeys, Store, UserKeys
from weir.trainer.config import TrainerConfig
from weir.trainer.export import export_bundle
from weir.trainer.export.keeper import Keeper
from weir.trainer.items.rows import FIRST_ITEM, Reader, no_rows
from weir.trainer.items.table import RowChanges
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.positives import Positives
from weir.trainer.stream.prequential import evaluate

app = command_line(__doc__)

AT_ONCE: Final = 1 << 16
"""Items that come with a window."""
_FEW: Final = 1000
_TESTED: Final = 100
_SPREAD: Final = np.int64(0x9E3779B97F4A7C1)
_MB: Final = (
    "held",
    "growing",
    "testing",
    "saving",
    "saving a delta",
    "exporting",
    "kept",
    "mapped",
    "loading",
    "sent in the test",
)
_SECONDS: Final = ("test", "export")
_WAITS: Final = ("save", "load", "wait")
"""Seconds of the clock."""


def fill(state: TrainerState, items: int, *, features: bool = False) -> None:
    """Give rows to so many items, as windows of some ten thousand new ones do."""
    for first in range(0, items, AT_ONCE):
        numbers = np.arange(first, min(first + AT_ONCE, items))
        ids = np.array([f"id-{number:09d}" for number in numbers.tolist()], object)
        rows = admit(state, ItemKeys((numbers + 1) * _SPREAD), ids, first)
        changes = RowChanges(rows, no_rows())
        state.counts.follow(rows, np.ones((len(rows), 1)), changes)
        if features:
            describe(state, ItemKeys((numbers + 1) * _SPREAD), changes)
        for reader in Reader:
            # As after a checkpoint and a bundle.
            state.touched.clear(reader)


def change(state: TrainerState, rows: int) -> None:
    """Change the embeddings of so many rows, as steps do, spread over the table."""
    changed = torch.linspace(FIRST_ITEM, len(state.table), rows, dtype=torch.float64).long()
    lines = state.embeddings.places.local(changed[state.embeddings.places.own(changed)])
    state.embeddings.weight[lines] += 1
    state.embeddings.touch(changed)
    state.position.step += 1


def events(items: int, length: int) -> Positives:
    """Return the events that a state is tested on."""
    draw = np.random.default_rng(0)
    histories, positives = ((draw.integers(0, items, shape) + 1) * _SPREAD for shape in ((_TESTED, length), _TESTED))
    return Positives.plain(UserKeys(positives), ItemKeys(positives), ItemKeys(histories))


def added(work: Callable[[], object]) -> int:
    """Return by how many bytes the memory of this process rises meanwhile, at most."""
    held = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    work()
    return max(status(PEAK) - held, 0)


def timed(work: Callable[[], object]) -> tuple[int, float]:
    """Return `added` and the seconds of the clock that it takes."""
    began = time.perf_counter()
    return added(work), time.perf_counter() - began


def exported(state: TrainerState, workers: Workers) -> dict[str, float]:
    """Export a bundle; return the bytes of own memory that this adds, those that stay and mapped ones, and seconds."""
    keeper, held, spent, began = Keeper(), status("RssAnon"), time.process_time(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, Peak() as peak:
        workers.first(lambda: export_bundle(Store(folder), state, keeper=keeper), state.answer)
        spent, wait = time.process_time() - spent, time.perf_counter() - began
    kept = max(status("RssAnon") - held, 0)
    return {"exporting": peak.own, "kept": kept, "mapped": peak.mapped, "export": spent, "wait": wait}


def figures(items: int, changed: int, folder: str, workers: Counted, *, features: bool) -> list[float]:
    """Return the figures of this rank, in MB, CPU seconds, and seconds of the clock."""
    log, config = CheckpointLog(Store(folder)), TrainerConfig(device="cpu", index="IVF256,SQfp16")
    loaded: list[TrainerState | None] = []
    few = TrainerState.fresh(config, workers=workers)
    fill(few, _FEW)
    exported(few, workers)
    found = of_a_state(items, changed, log, config, workers, features=features)
    found["loading"], found["load"] = timed(lambda: loaded.append(log.load(config, workers)))
    assert loaded[0] is not None  # noqa: S101 - it was saved
    found |= exported(loaded[0], workers)
    return [*(found[name] / 1e6 for name in _MB), *(found[name] for name in (*_SECONDS, *_WAITS))]


def of_a_state(
    items: int, changed: int, log: CheckpointLog, config: TrainerConfig, workers: Counted, *, features: bool
) -> dict[str, float]:
    """Return the bytes that a state holds, and all that is done with it adds; bytes sent and CPU seconds."""
    state, base = TrainerState.fresh(config, workers=workers), status("VmRSS")
    most = added(lambda: fill(state, items, features=features))
    held = status("VmRSS") - base
    tested = events(items, config.tower.history_length)
    workers.sent, spent = 0, time.process_time()
    testing = added(lambda: evaluate(state, manifest_of(), tested))
    found: dict[str, float] = {
        "held": held,
        "growing": most - held,
        "testing": testing,
        "sent in the test": workers.sent,
    }
    found["test"] = time.process_time() - spent
    found["saving"], found["save"] = timed(lambda: log.save(state, workers))
    if changed:
        change(state, changed)
    found["saving a delta"] = added(lambda: log.save(state, workers))  # without changes, nothing is written
    return found


@app.command()
def rank(items: int, changed: int, folder: str, features: bool = False) -> None:
    """Be one of the ranks that `run` starts; the first prints what all of them found."""
    torch.set_num_threads(1)
    alone = Workers.from_environment("cpu", 1200)
    with Counted(alone.rank, alone.world_size, alone.device, alone.patience) as workers:
        found = workers.gather(
            torch.tensor(figures(items, changed, folder, workers, features=features), dtype=torch.float64)
        )
        workers.first(lambda: print(json.dumps(found.tolist())))


def ranks_of(ranks: int, items: int, changed: int, *, features: bool) -> np.ndarray:
    """Return what each of so many ranks found, (ranks, figures)."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [items, changed, folder, *["--features"] * features]
        return figures_of_ranks(ranks, "benchmarks.ranks_memory", *arguments)


@app.command()
def run(
    items: Annotated[int, typer.Option(help="items of the table")] = 2_000_000,
    ranks: Annotated[list[int], typer.Option(help="numbers of ranks")] = [1, 2, 4],  # noqa: B006
    changed: Annotated[int, typer.Option(help="rows of a delta, at most a quarter of the table's; 0: none")] = 0,
    features: Annotated[bool, typer.Option("--features", help="items have features: tags and a price")] = False,
) -> None:
    """Measure and print everything."""
    head(
        "ranks",
        *(f"{name}, MB" for name in _MB),
        *(f"CPU of the {name}, s" for name in _SECONDS),
        *(f"{name}, s" for name in _WAITS),
    )
    for count in ranks:
        found = ranks_of(count, items, changed, features=features)
        most, spent = found.max(0).tolist(), found[:, len(_MB) : -len(_WAITS)].sum(0).tolist()
        row(count, *most[: len(_MB)], *spent, *most[-len(_WAITS) :])


if __name__ == "__main__":
    app()
