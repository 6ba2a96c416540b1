"""What the first export of a process costs: it goes on from a checkpoint and from the newest bundle of the store.

    OMP_NUM_THREADS=1 python -m benchmarks.restart                     # 0.2 and 2 million items; 4 GB of memory

After a complete bundle some rows change, and a checkpoint is saved. Then two start from it. The first opens the bundle
beside the loading of the checkpoint, as a trainer does, and compares what has changed since, as the checkpoint says.
The second opens it afterwards, and compares every item. Lists are 256.

- load: seconds of the clock in which the checkpoint is loaded.
- wait: seconds from then on, until the newest bundle is open and its lists are measured.
- start: CPU-seconds of both. export: those of the export after them.
"""

import tempfile
import time
from typing import Annotated

import torch
import typer

from benchmarks.exports import train_quickly
from benchmarks.harness import command_line, head, row
from benchmarks.ranks_memory import change, fill
from weir.contracts import BundleLog, Store
from weir.trainer.config import TrainerConfig
from weir.trainer.export import export_bundle
from weir.trainer.export.keeper import Keeper
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState

app = command_line(__doc__)


def first_export(
    store: Store, config: TrainerConfig, *, is_known: bool, beside: bool
) -> tuple[float, float, float, float, float]:
    """Start from the newest checkpoint; return the share of items compared, and seconds.

    Of the clock for loading and for opening, CPU-seconds of both, and of the export.
    """
    keeper, started, began = Keeper(), time.process_time(), time.perf_counter()
    if beside:
        keeper.start(BundleLog(store))
    state = CheckpointLog(store).load(config, Workers())
    load, began = time.perf_counter() - began, time.perf_counter()
    if state is None:
        raise RuntimeError(f"{store.url} holds no checkpoint")
    if not is_known:
        state.since.ref = None
        state.position.step += 1  # or the bundle would be there already
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
    head("items", "changed", "opened", "compared", "load, s", "wait, s", "start, CPU s", "export, CPU s")
    for count in items:
        with tempfile.TemporaryDirectory(prefix="weir-restart-") as folder:
            store, state = Store(folder), TrainerState.fresh(config)
            fill(state, count)
            state.position.trained_sequence = 0
            export_bundle(store, state, keeper=Keeper())
            change(state, changed)
            CheckpointLog(store).save(state, Workers())
            for opened, is_known in (("beside", True), ("afterwards", False)):
                compared, *seconds = first_export(store, config, is_known=is_known, beside=is_known)
                row(f"{count:,}", f"{changed:,}", opened, f"{compared:.1%}", *seconds)


if __name__ == "__main__":
    app()
