"""Memory and disk per item and per user, for docs/sizing.md.

    python -m benchmarks.footprint trainer --items 1000000       # the trainer's state, a checkpoint, a bundle
    python -m benchmarks.footprint window STORE                  # reading a store's first window as the trainer does
    python -m benchmarks.footprint histories --users 1000000     # the server's histories, and adding a window to them

For the trainer it is the peak of the process, less the peak of the same with a thousand items (or before the window);
for histories it is what numpy allocated. A busy machine affects only the CPU-seconds (user and system), and little.
"""

import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import numpy as np
import typer

from benchmarks.harness import command_line, status
from benchmarks.states import filled
from contracts import Events, Histories, Store, WindowLog
from contracts.columns import ITEM_ID, ITEM_KEY
from trainer.config import TrainerConfig
from trainer.export import export_bundle
from trainer.items.table import ItemTable
from trainer.ranks.workers import Workers
from trainer.state.checkpoint import CheckpointLog
from trainer.step.batches import Examples, read_positives

app = command_line(__doc__)
HISTORY: Final = 50
FEW: Final = 1000
PEAK: Final = "VmHWM"
Items = Annotated[int, typer.Option(help="items in the table")]
Kind = Annotated[str, typer.Option(help="FAISS factory string, or auto")]
Users = Annotated[int, typer.Option(help="users with a full history")]
Arrivals = Annotated[float, typer.Option(help="events of the next window, per user")]


@app.command()
def trainer(items: Items = 1_000_000, index: Kind = "auto") -> None:
    """Fill a table, save a checkpoint, export a bundle."""
    measure(TrainerConfig(device="cpu", index=index), FEW, 0)
    print(f"with {FEW} items the process takes {status('VmHWM') / 2**20:.0f} MiB; per item beyond that:", flush=True)
    measure(TrainerConfig(device="cpu", index=index), items, status(PEAK))


def measure(config: TrainerConfig, items: int, base: int) -> None:
    """Print the cost of each step of a trainer with so many items; without a `base`, only execute them."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        with measured("state", items, base):
            state, _ = filled(config, items)
        with measured("checkpoint", items, base):
            CheckpointLog(store).save(state, Workers())
        with measured("bundle", items, base):
            export_bundle(store, state)
        if base:
            saved = sum(len(store.read(name)) for name in store.glob("checkpoints/*/*"))
            print(
                f"checkpoint on disk: {saved / items:.0f} bytes per item, of a table with {state.table.capacity} rows"
            )


@contextmanager
def measured(step: str, items: int, base: int) -> Iterator[None]:
    """Print the peak of the process after a step, beyond `base`, and the CPU-seconds of the step."""
    started = time.process_time()
    yield
    if base:
        print(
            f"{step}: {(status('VmHWM') - base) / items:.0f} bytes at most, {time.process_time() - started:.1f} s",
            flush=True,
        )


@app.command()
def window(store: Annotated[str, typer.Argument(help="path or URL")]) -> None:
    """Read the first window as the trainer does, into examples of a table that holds its items."""
    log = WindowLog(Store(store))
    manifest = log.committed()[0]
    items, table = log.items(manifest), ItemTable()
    table.admit(items[ITEM_KEY].to_numpy(), items[ITEM_ID].to_numpy(), 0)
    count, base = manifest.counts.positives, status(PEAK)
    with measured("read", count, base):
        found = read_positives(log, manifest, HISTORY)
    with measured("examples", count, base):
        Examples.of(found, table).admitted()


@app.command()
def histories(users: Users = 1_000_000, arrivals: Arrivals = 0.2) -> None:
    """Build the histories of all users, and add a window as `serving.histories` does: in a copy."""
    tracemalloc.start()
    draw = np.random.default_rng(0)
    keys = np.sort(draw.integers(-(2**63), 2**63 - 1, users))
    held = Histories(keys, draw.integers(1, 2**63, (users, HISTORY)), np.zeros((users, HISTORY), np.int64))
    print(f"held: {tracemalloc.get_traced_memory()[0] / users:.0f} bytes per user", flush=True)
    count = round(arrivals * users)
    ones = np.ones(count, np.int64)
    events = Events(draw.choice(keys, count), draw.integers(1, 2**63, count), ones, ones > 0)
    tracemalloc.reset_peak()
    started = time.process_time()
    longer = Histories(held.users, held.items, held.times)
    longer.extend(events)
    spent = time.process_time() - started
    print(f"adding {count} events: {tracemalloc.get_traced_memory()[1] / users:.0f} at most, {spent:.1f} s")


if __name__ == "__main__":
    app()
