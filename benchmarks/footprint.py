"""Memory and disk per item and per event, for docs/sizing.md.

    python -m benchmarks.footprint trainer --items 1000000       # the trainer's state, a checkpoint, a bundle, a test
    python -m benchmarks.footprint a-window STORE --positives 10000000 # writes one of random items
    python -m benchmarks.footprint window STORE                  # reading a store's first window as the trainer does

Memory is the peak of the process beyond that with a thousand items; of the test, beyond what the process holds before
it. Mapped pages are counted apart.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from io import StringIO
from typing import Annotated, Final

import numpy as np
import pyarrow as pa
import torch
import typer

from benchmarks.harness import I64, Peak, command_line, cpu_of_call, head, restart_peak, row, status
from benchmarks.states import filled, item_id
from weir.contracts import (
    FileEntry,
    ItemKeys,
    Store,
    UserKeys,
    WindowCounts,
    WindowLog,
    WindowManifest,
    WindowName,
    examples_schema,
    hash_ids,
)
from weir.contracts.base import columns
from weir.contracts.base.columns import ITEM_ID, ITEM_KEY
from weir.contracts.commits.window import ITEMS_SCHEMA
from weir.contracts.storage.artefacts import write_table
from weir.trainer.export import export_bundle
from weir.trainer.items.table import ItemTable
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.batches import batches
from weir.trainer.step.positives import Positives, SharedWindow, read_positives
from weir.trainer.stream.prequential import evaluate

app = command_line(__doc__)
HISTORY: Final = 50
FEW: Final = 1000
TESTED: Final = 256
SHARDS: Final = 16
COLUMNS: Final = ("step", "own memory, B each", "mapped files, B", "CPU, us")
Items = Annotated[int, typer.Option(help="items in the table")]
Kind = Annotated[str, typer.Option(help="FAISS factory string, or auto")]


@app.command()
def trainer(items: Items = 1_000_000, index: Kind = "auto") -> None:
    """Fill a table, save a checkpoint, export a bundle, test on events."""
    with redirect_stdout(StringIO()):
        measure(TrainerConfig(device="cpu", index=index), FEW)
    base = status("RssAnon")
    print(f"with {FEW} items the process takes {base / 2**20:.0f} MiB; per item beyond that:\n", flush=True)
    head(*COLUMNS)
    measure(TrainerConfig(device="cpu", index=index), items, base)


def measure(config: TrainerConfig, items: int, base: int = 0) -> None:
    """Print the cost of each step of a trainer with so many items, beyond a `base` of own memory."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        with measured("state", items, base):
            state = filled(config, items)
        with measured("checkpoint", items, base):
            CheckpointLog(store).save(state, Workers())
        with measured("bundle", items, base):
            export_bundle(store, state)
        saved = sum(len(store.read(name)) for name in store.glob("checkpoints/*/*"))
        print(f"checkpoint on disk: {saved / items:.0f} bytes per item, of a table with {state.table.capacity} rows")
        tested(state, items)


def tested(state: TrainerState, items: int) -> None:
    """Test the state on random events, and print what this adds to the memory of the process, and costs."""
    draw, keys = np.random.default_rng(0), state.table.keys[state.table.live]
    histories, positives = draw.choice(keys, (TESTED, HISTORY)), draw.choice(keys, TESTED)
    found = Positives.plain(UserKeys(positives), ItemKeys(positives), ItemKeys(histories))
    held = restart_peak()
    spent = cpu_of_call(partial(evaluate, state, manifest_of(), found))
    added = status("VmHWM") - held
    each = f"{added / items:.0f} bytes per item, {1000 * spent / TESTED:.1f} ms of CPU per event"
    print(f"test of {TESTED} events: {added / 2**20:.0f} MiB more, {each}", flush=True)


def manifest_of(positives: int = 0, files: tuple[FileEntry, ...] = ()) -> WindowManifest:
    """Return the manifest of a window with these files."""
    return WindowManifest(
        sequence=1, start_ms=0, end_ms=1000, pane=0, attempt="a", min_event_ms=0, max_event_ms=999, committed_at=0,
        counts=WindowCounts(events=positives, positives=positives), history_length=HISTORY, sketch={}, files=files,
    )  # fmt: skip


@contextmanager
def measured(step: str, count: int, base: int) -> Iterator[None]:
    """Print the peak of own memory in a step beyond `base`, of mapped pages, and CPU, for each of so many."""
    held = status("RssAnon")
    with Peak() as peak:
        yield
    sizes = (held + peak.own - base, peak.mapped)
    row(step, *(f"{size / count:.0f}" for size in sizes), f"{1e6 * peak.cpu / count:.2f}")


@app.command()
def a_window(
    store: Annotated[str, typer.Argument(help="folder that gets the window")],
    positives: Annotated[int, typer.Option(help="events, all positive")] = 10_000_000,
    items: Items = 100_000,
) -> None:
    """Commit a window in which every event has a full history of random items, which does not compress."""
    log, draw, name = WindowLog(Store(store)), np.random.default_rng(0), WindowName(0, 1000)
    ids = [item_id(number) for number in range(items)]
    keys, folder = hash_ids(ids), name.folder("a")
    table = pa.table([keys, ids, np.ones(items, np.int64)], schema=ITEMS_SCHEMA)
    files = [write_table(log.store, f"{folder}/{WindowName.items()}", table)]
    for shard, users in enumerate(np.array_split(np.arange(positives), SHARDS)):
        entry = write_table(
            log.store, f"{folder}/{WindowName.examples(shard)}", random_examples(users, ItemKeys(keys), draw)
        )
        files.append(entry)
    log.commit(manifest_of(positives, tuple(files)))


def random_examples(users: I64, keys: ItemKeys, draw: np.random.Generator) -> pa.Table:
    """Return a positive for each user, with random items."""
    count, schema = len(users), examples_schema(HISTORY)
    drawn = {
        columns.USER_KEY: users,
        columns.ITEM_KEY: draw.choice(keys, count),
        columns.TIMESTAMP: np.zeros(count, np.int64),
        columns.HISTORY: pa.FixedSizeListArray.from_arrays(draw.choice(keys, count * HISTORY), HISTORY),
        columns.WEIGHT: np.ones(count, np.float32),
        columns.LABEL: np.ones(count, np.int8),
    }
    given = [drawn[name] if name in drawn else pa.nulls(count, schema.field(name).type) for name in schema.names]
    return pa.table(given, schema=schema)


@app.command()
def window(store: Annotated[str, typer.Argument(help="path or URL")]) -> None:
    """Read the first window as the trainer does, and deal batches of rows of a table that holds its items."""
    log = WindowLog(Store(store))
    manifest = log.committed()[0]
    items, table, size = log.items(manifest), ItemTable(), TrainerConfig().batch_size
    table.admit(items[ITEM_KEY].to_numpy(), items[ITEM_ID].to_numpy(), 0)
    head(*COLUMNS)
    count = manifest.counts.positives
    with measured("read", count, status("RssAnon")):
        found = SharedWindow(read_positives(log, manifest, HISTORY), Workers())
    with measured("look up and deal all batches", count, status("RssAnon")):
        for _ in batches(found, table, size, torch.Generator()):
            pass


if __name__ == "__main__":
    app()
