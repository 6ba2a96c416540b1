"""Trainer states of any size, and what a window costs one beside its steps: by items of the window and of the table.

    OMP_NUM_THREADS=1 python -m benchmarks.states                  # 0.2 and 2 million items, 3 GB of memory
    OMP_NUM_THREADS=1 python -m benchmarks.states --features       # items have one to three tags and a price each

Each window has 100,000 events of 20,000 items, drawn from all items each time, the worst case for a chain of
checkpoints; 2,000 items are new, and as many expire. The windows together touch every item about once. Columns are
means over all windows: CPU-seconds and bytes written; memory is by how much the windows raise the peak.
"""

import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import typer

from benchmarks.harness import cpu_of_call, head, restart_peak, row, status
from weir.contracts import FeatureNames, ItemKeys, Store, WindowLog, WindowManifest, hash_ids
from weir.sketches import CountMinSketch
from weir.trainer.items.rows import no_rows
from weir.trainer.items.table import RowChanges, TableRows
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TowerConfig, TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState, start_features
from weir.trainer.step.positives import SharedWindow
from weir.trainer.step.seeds import Purpose, generator
from weir.trainer.stream.learner import Learner
from weir.trainer.stream.metrics import TrainerMetrics
from weir.trainer.stream.progress import ProgressObserver

app = typer.Typer(help=__doc__, rich_markup_mode=None, add_completion=False)

EVENTS: Final = 100_000
HISTORY: Final = 10
TOUCHED: Final = 20_000
NEW: Final = 2_000
LASTING: Final = 1_000_000
"""Event time at which the table was filled; new items come in late panes, so that they expire and the others do not."""
PARTS: Final = ("look-up", "admission, eviction", "frequencies", "features", "checkpoint")
_FEATURES: Final = FeatureNames(categorical=("tags",), dense=("price",))


def item_id(number: int) -> str:
    """Return the id of an item of a filled state."""
    return f"item-{number:08d}"


def ids_of(first: int, count: int) -> npt.NDArray[np.object_]:
    """Return the ids of numbered items."""
    return np.array([item_id(number) for number in range(first, first + count)], object)


def keys_of(first: int, count: int) -> ItemKeys:
    """Return the keys of numbered items."""
    return ItemKeys(hash_ids(ids_of(first, count).tolist()))


def filled(config: TrainerConfig, items: int, workers: Workers | None = None) -> TrainerState:
    """Return a state that knows so many items, each of which occurred once in its only window."""
    state = TrainerState.fresh(config, workers.device if workers else None, workers=workers)
    keys, sketch = keys_of(0, items), CountMinSketch(1 << 16)
    sketch.update(keys)
    admit(state, keys, ids_of(0, items), 0)
    state.frequencies.add(sketch.to_bytes(), 0)
    state.counts.read_all()
    state.position.trained_sequence = 0
    return state


def describe(state: TrainerState, keys: ItemKeys, changes: RowChanges) -> None:
    """Give each item, all of which have rows, one to three tags and a price, as a window does."""
    featured = state.featured or start_features(state)
    tags, counts = np.char.add("tag", (keys % 1000).astype(str)).astype(object), keys % 3 + 1
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    items = pa.table({"tags": pa.ListArray.from_arrays(offsets, np.repeat(tags, counts)), "price": keys % 97 / 7})
    window = WindowManifest.model_construct(item_features=_FEATURES, max_event_ms=0)  # type: ignore[call-arg]
    featured.ingest_window(window, state.table.rows_alike(keys), items, changes, state.table.capacity)


def admit(state: TrainerState, keys: ItemKeys, ids: npt.NDArray[np.object_], sequence: int) -> TableRows:
    """Give rows and fresh embeddings to the items that have none; return these rows."""
    admitted = state.table.admit(keys, ids, sequence)
    state.embeddings.grow(state.table.capacity)
    state.embeddings.initialise(admitted, generator(state.config.seed, Purpose.ROWS, sequence))
    return admitted


def learner(
    store: Store,
    state: TrainerState,
    workers: Workers,
    stop: threading.Event,
    review: Callable[[WindowManifest, SharedWindow], None] | None = None,
) -> Learner:
    """Return the learner of a store's windows; `review` sees each window before the state learns it."""
    observer = ProgressObserver(store, TrainerMetrics(), workers.is_first)
    return Learner(state, WindowLog(store), workers, stop, observer, CheckpointLog(store), review)


@app.command()
def main(
    items: Annotated[list[int] | None, typer.Option(help="items in the table; several are measured in turn")] = None,
    windows: Annotated[int | None, typer.Option(help="windows; default: until all items are touched")] = None,
    width: Annotated[int, typer.Option(help="cells in each of the four rows of a sketch")] = 1 << 16,
    *,
    features: Annotated[bool, typer.Option("--features", help="items have features")] = False,
) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    head("items", *(f"{part}, s" for part in PARTS), "longest checkpoint, s", "written, MB", "memory, MB", "restore, s")
    for size in items or (200_000, 2_000_000):
        measure(size, windows or max(12, size // TOUCHED), width, features=features)


def measure(items: int, windows: int, width: int, *, features: bool) -> None:
    """Print the row of one size."""
    config = TrainerConfig(device="cpu", tower=TowerConfig(kind="mean_pooling"))
    state = TrainerState.fresh(config)
    admit(state, keys_of(0, items), ids_of(0, items), LASTING)
    state.counts.read_all()
    if features:
        describe(state, keys_of(0, items), RowChanges(no_rows(), no_rows()))
    with tempfile.TemporaryDirectory() as folder:
        store, spent, written = Store(folder), defaultdict[str, list[float]](list), []
        log = CheckpointLog(store)
        log.save(state, Workers())
        held = restart_peak()
        for number in range(windows):
            before = store.find("checkpoints").keys()
            for part, seconds in Window(state, items, number, width).costs(log).items():
                spent[part].append(seconds)
            written.append(sum(stat.size for name, stat in store.find("checkpoints").items() if name not in before))
        memory = (status("VmHWM") - held) / 1e6
        restored = cpu_of_call(partial(log.load, config, Workers()))
    means = [f"{np.mean(spent[part]):.4f}" for part in PARTS]
    sizes = [f"{np.mean(written) / 1e6:.1f}", f"{memory:.0f}"]
    row(items, *means, f"{max(spent['checkpoint']):.2f}", *sizes, f"{restored:.1f}")


class Window:
    """A window of `TOUCHED` items, `NEW` of them unknown, of a table that was filled with `items`."""

    def __init__(self, state: TrainerState, items: int, number: int, width: int) -> None:
        draw, self._first = np.random.default_rng(number), items + number * NEW
        known = draw.choice(items, TOUCHED - NEW, replace=False)
        old = hash_ids([item_id(one) for one in known.tolist()])
        self._state, self._number = state, number
        self._keys = ItemKeys(np.concatenate([old, keys_of(self._first, NEW)]))
        self._shown = ItemKeys(draw.choice(self._keys, (EVENTS, HISTORY)))
        sketch = CountMinSketch(width)
        sketch.update(np.resize(self._keys, EVENTS))
        self._sketch = sketch.to_bytes()

    def costs(self, log: CheckpointLog) -> dict[str, float]:
        """Take the window in, and return the CPU seconds of each part."""
        calls: list[Callable[[], object]] = [partial(self._state.table.rows, self._shown), self._change]
        calls += [self._count, self._describe, partial(self._save, log)]
        return {part: cpu_of_call(call) for part, call in zip(PARTS, calls, strict=True)}

    def _change(self) -> None:
        """See the items, take rows and give them to the new ones."""
        self._state.table.touch(self._keys, LASTING + self._number)
        evicted = self._state.table.expire(self._number - 2)
        new = ItemKeys(self._keys[-NEW:])
        self._changes = RowChanges(admit(self._state, new, ids_of(self._first, NEW), self._number), evicted)

    def _count(self) -> None:
        frequencies, table = self._state.frequencies, self._state.table
        frequencies.add(self._sketch, self._number * 60_000)
        self._state.counts.follow(table.rows(self._keys), frequencies.estimates(self._keys), self._changes)

    def _describe(self) -> None:
        """Take in the features of the items, where these have any."""
        if self._state.featured is not None:
            describe(self._state, self._keys, self._changes)

    def _save(self, log: CheckpointLog) -> None:
        """Move all rows of the window once, as its steps do, and write the checkpoint."""
        index = torch.from_numpy(np.unique(self._state.table.rows(self._keys)))
        self._state.embeddings.adagrad_step(index, torch.ones(len(index), self._state.embeddings.weight.shape[1]), 0.1)
        self._state.position.step += 1
        self._state.position.sequence += 1
        log.save(self._state, Workers())


if __name__ == "__main__":
    app()
