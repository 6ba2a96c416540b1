"""Memory and disk per item and per event, for docs/sizing.md.

    python -m benchmarks.footprint trainer --items 1000000       # the trainer's state, a checkpoint, a bundle, a test
    python -m benchmarks.footprint window STORE                  # reading a store's first window as the trainer does

It is the peak of the process, less the peak of the same with a thousand items (or before the window); for the test,
less what the process holds before it. A busy machine affects only the CPU-seconds (user and system), and little.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from benchmarks.harness import command_line, status
from benchmarks.states import filled
from contracts import ItemKeys, Store, UserKeys, WindowCounts, WindowLog, WindowManifest
from contracts.columns import ITEM_ID, ITEM_KEY
from trainer.config import TrainerConfig
from trainer.export import export_bundle
from trainer.items.table import ItemTable
from trainer.ranks.workers import Workers
from trainer.state.checkpoint import CheckpointLog
from trainer.state.trainer_state import TrainerState
from trainer.step.batches import Examples, Positives, read_positives
from trainer.stream.prequential import evaluate

app = command_line(__doc__)
HISTORY: Final = 50
FEW: Final = 1000
TESTED: Final = 256
PEAK: Final = "VmHWM"
Items = Annotated[int, typer.Option(help="items in the table")]
Kind = Annotated[str, typer.Option(help="FAISS factory string, or auto")]


@app.command()
def trainer(items: Items = 1_000_000, index: Kind = "auto") -> None:
    """Fill a table, save a checkpoint, export a bundle, test on events."""
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
        tested(state, items, print_it=bool(base))


def tested(state: TrainerState, items: int, *, print_it: bool) -> None:
    """Test the state on random events, and print what this adds to the memory of the process, and costs."""
    draw, keys = np.random.default_rng(0), state.table.keys[state.table.live]
    histories, positives = draw.choice(keys, (TESTED, HISTORY)), draw.choice(keys, TESTED)
    weights, exposed = np.ones(TESTED, np.float32), ItemKeys(np.empty((TESTED, 0), np.int64))
    found = Positives(UserKeys(positives), ItemKeys(positives), ItemKeys(histories), weights, exposed)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    held, started = status("VmRSS"), time.process_time()
    evaluate(state, a_window(), found, Workers())
    spent, added = time.process_time() - started, status(PEAK) - held
    if print_it:
        each = f"{added / items:.0f} bytes per item, {1000 * spent / TESTED:.1f} ms of CPU per event"
        print(f"test of {TESTED} events: {added / 2**20:.0f} MiB more, {each}", flush=True)


def a_window() -> WindowManifest:
    """Return the manifest of a window without files."""
    return WindowManifest(
        sequence=1, start_ms=0, end_ms=1000, pane=0, attempt="a", min_event_ms=0, max_event_ms=999, committed_at=0,
        counts=WindowCounts(), history_length=HISTORY, sketch={}, files=(),
    )  # fmt: skip


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


if __name__ == "__main__":
    app()
