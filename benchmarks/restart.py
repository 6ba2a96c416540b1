"""What the first export of a process costs: it goes on from a checkpoint and from the newest bundle of the store.

    OMP_NUM_THREADS=1 python -m benchmarks.restart                     # 0.2 and 2 million items; 4 GB of memory

After a complete bundle some rows change, and a checkpoint is saved. Then processes start from it: one that compares
what has changed since the bundle, as the checkpoint says, and one that compares every item. Lists are 256.

- load: seconds of the clock in which the checkpoint is loaded.
- open: CPU-seconds in which the newest bundle is opened and its lists are measured; both do that. wait: of the clock.
- export: those of the export after it.
"""

import tempfile
import time
from typing import Annotated

import torch
import typer

from benchmarks.exports import train_quickly
from benchmarks.harness import command_line, head, row
from benchmarks.ranks_memory import change, fill
from contracts import BundleLog, Store
from trainer.config import TrainerConfig
from trainer.export import export_bundle
from trainer.export.keeper import Keeper
from trainer.ranks.workers import Workers
from trainer.state.checkpoint import CheckpointLog
from trainer.state.trainer_state import TrainerState

app = command_line(__doc__)


def first_export(store: Store, config: TrainerConfig, *, is_known: bool) -> tuple[float, float, float, float, float]:
    """Start from the newest checkpoint; return the share of items compared, and seconds.

    Of the clock for loading and for opening, CPU-seconds of the latter, and of the export.
    """
    began = time.perf_counter()
    state, keeper = CheckpointLog(store).load(config, Workers()), Keeper()
    load = time.perf_counter() - began
    if state is None:
        raise RuntimeError(f"{store.url} holds no checkpoint")
    if not is_known:
        state.since.ref = None
        state.position.step += 1  # or the bundle would be there already
    started, began = time.process_time(), time.perf_counter()
    keeper.resume(BundleLog(store))
    opened, wait = time.process_time(), time.perf_counter() - began
    export_bundle(store, state, keeper=keeper)
    return keeper.compared, load, wait, opened - started, time.process_time() - opened


@app.command(help=__doc__)
def main(
    items: Annotated[list[int], typer.Option(help="items; may be repeated")] = [200_000, 2_000_000],  # noqa: B006 - typer copies it
    changed: Annotated[int, typer.Option(help="rows that change after the bundle")] = 2000,
) -> None:
    """Measure and print, a store at a time."""
    torch.set_num_threads(1)
    train_quickly()
    config = TrainerConfig(device="cpu", index="IVF256,SQfp16")
    head("items", "changed", "compared", "load, s", "wait, s", "open, CPU s", "export, CPU s")
    for count in items:
        with tempfile.TemporaryDirectory(prefix="weir-restart-") as folder:
            store, state = Store(folder), TrainerState.fresh(config)
            fill(state, count)
            state.position.trained_sequence = 0
            export_bundle(store, state, keeper=Keeper())
            change(state, changed)
            CheckpointLog(store).save(state, Workers())
            for is_known in (True, False):
                compared, *seconds = first_export(store, config, is_known=is_known)
                row(f"{count:,}", f"{changed:,}", f"{compared:.1%}", *seconds)


if __name__ == "__main__":
    app()
