"""What a window costs the trainer beside its steps, against what the window touches and what the table holds.

    OMP_NUM_THREADS=1 python -m benchmarks.window_costs                  # 0.2 and 2 million items, 3 GB of memory
    OMP_NUM_THREADS=1 python -m benchmarks.window_costs --touched 2000   # other changes
    OMP_NUM_THREADS=1 python -m benchmarks.window_costs --features       # items have features

Each window has 100,000 events of 20,000 items, drawn from all items each time, which is the worst case for a chain of
checkpoints; some items are new, and as many of earlier windows expire. There are so many windows that all items are
touched about once: whole checkpoints are in the mean as often as they are due. Columns are means over all windows:
CPU-seconds and bytes written; memory is by how much the windows raise the peak. With features, each item has one to
three tags and a price, and each window says so of its items.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt
import torch
import typer

from benchmarks.harness import I64, head, row, status
from benchmarks.states import admit, count, describe, item_id
from weir.contracts import ItemKeys, Store, hash_ids
from weir.sketches import CountMinSketch
from weir.trainer.config import TowerConfig, TrainerConfig
from weir.trainer.items.rows import no_rows
from weir.trainer.items.table import RowChanges
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState

app = typer.Typer(help=__doc__, rich_markup_mode=None, add_completion=False)

EVENTS: Final = 100_000
HISTORY: Final = 10
LASTING: Final = 1_000_000
"""Event time at which the table was filled; new items come in late panes, so that they expire and the others do not."""
PARTS: Final = ("look-up", "admission, eviction", "frequencies", "features", "checkpoint")


@app.command()
def main(
    items: Annotated[list[int] | None, typer.Option(help="items in the table; several are measured in turn")] = None,
    touched: Annotated[int, typer.Option(help="items of a window")] = 20_000,
    new: Annotated[int, typer.Option(help="new items of a window")] = 2_000,
    windows: Annotated[int | None, typer.Option(help="windows; default: until all items are touched")] = None,
    width: Annotated[int, typer.Option(help="cells in each of the four rows of a sketch")] = 1 << 16,
    *,
    features: Annotated[bool, typer.Option("--features", help="items have features")] = False,
) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    head("items", *(f"{part}, s" for part in PARTS), "longest checkpoint, s", "written, MB", "memory, MB", "restore, s")
    for size in items or (200_000, 2_000_000):
        measure(size, touched, new, windows or max(12, size // touched), width, features=features)


def measure(known: int, touched: int, new: int, windows: int, width: int, *, features: bool) -> None:
    """Print the row of one size."""
    config, draw = TrainerConfig(device="cpu", tower=TowerConfig(kind="mean_pooling")), np.random.default_rng(0)
    state, keys = TrainerState.fresh(config), keys_of(0, known)
    admit(state, keys, ids_of(0, known), LASTING)
    state.counts.read_all()
    if features:
        describe(state, keys, RowChanges(no_rows(), no_rows()))
    with tempfile.TemporaryDirectory() as folder:
        store, spent, written = Store(folder), defaultdict[str, list[float]](list), []
        log = CheckpointLog(store)
        log.save(state, Workers())
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
        held = status("VmRSS")
        for number in range(windows):
            some = ItemKeys(np.concatenate([draw.choice(keys, touched - new, replace=False), keys_of(known, new)]))
            shown = ItemKeys(draw.choice(some, (EVENTS, HISTORY)))
            changing = Window(state, some, ids_of(known, new), number, width)
            calls: list[Callable[[], object]] = [partial(state.table.rows, shown), changing.change]
            calls += [changing.frequencies, changing.describe, save(state, log, some)]
            for part, call in zip(PARTS, calls, strict=True):
                before = store.find("checkpoints").keys()
                started = time.process_time()
                call()
                spent[part].append(time.process_time() - started)
                added = store.find("checkpoints")
            written.append(sum(stat.size for name, stat in added.items() if name not in before))
            known += new
        memory = (status("VmHWM") - held) / 1e6
        started = time.process_time()
        log.load(config, Workers())
        restored = time.process_time() - started
    means = [f"{np.mean(spent[part]):.4f}" for part in PARTS]
    row(
        len(keys),
        *means,
        f"{max(spent['checkpoint']):.2f}",
        f"{np.mean(written) / 1e6:.1f}",
        f"{memory:.0f}",
        f"{restored:.1f}",
    )


class Window:
    """A window's items, of which the last ones, as many as `ids`, are new."""

    def __init__(
        self, state: TrainerState, keys: ItemKeys, ids: npt.NDArray[np.object_], number: int, width: int
    ) -> None:
        self.state, self.keys, self.ids, self.number = state, keys, ids, number
        sketch = CountMinSketch(width)
        sketch.update(np.resize(keys, EVENTS))
        self.sketch = sketch.to_bytes()

    def change(self) -> None:
        """See the items, take rows and give them to the new ones."""
        self.state.table.touch(self.keys, LASTING + self.number)
        evicted = self.state.table.expire(self.number - 2)
        admitted = admit(self.state, ItemKeys(self.keys[-len(self.ids) :]), self.ids, self.number)
        self.changes = RowChanges(admitted, evicted)

    def frequencies(self) -> None:
        """Add the sketch."""
        count(self.state, self.sketch, self.keys, self.number * 60_000, self.changes)

    def describe(self) -> None:
        """Take in the features of the items, where these have any."""
        if self.state.featured is not None:
            describe(self.state, self.keys, self.changes)


def save(state: TrainerState, log: CheckpointLog, keys: ItemKeys) -> Callable[[], object]:
    """Return what writes the checkpoint, after all rows of the window have moved once, as its steps do."""

    def call() -> None:
        train(state, state.table.rows(keys))
        log.save(state, Workers())

    return call


def train(state: TrainerState, rows: I64) -> None:
    """Move all rows of a window once, as its steps do."""
    index = torch.from_numpy(np.unique(rows))
    state.embeddings.adagrad_step(index, torch.ones(len(index), state.embeddings.weight.shape[1]), 0.1)
    state.position.step += 1
    state.position.sequence += 1


def keys_of(first: int, count: int) -> ItemKeys:
    """Return the keys of numbered items."""
    return ItemKeys(hash_ids(ids_of(first, count).tolist()))


def ids_of(first: int, count: int) -> npt.NDArray[np.object_]:
    """Return the ids of numbered items."""
    return np.array([item_id(number) for number in range(first, first + count)], object)


if __name__ == "__main__":
    app()
