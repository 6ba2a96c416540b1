"""How long training waits for exports when a chain of deltas has reached its limit: with a complete bundle, or beside.

    OMP_NUM_THREADS=1 python -m benchmarks.compaction                     # 200,000 items: two minutes
    OMP_NUM_THREADS=1 python -m benchmarks.compaction --items 2000000     # 9 GB of memory, 5 GB of disk

The stream of `benchmarks.deltas`, without a server: each round 1 % of the items move, the trainer's own export
publishes them, and a loop of small steps of a model takes the place of training until the next. Each line is a run of
its own: in one, a chain ends in a complete bundle, as in a bounded run; in the other it is compacted beside, as for a
follower. Its thread has a low priority, so it needs longer pauses on busy cores. What is complete in spite of that is
made in the way here (`benchmarks.complete_exports` has it made beside, too).

- complete: exports that were, and compactions that were finished.
- export: seconds that the loop waits for one, median and longest, and CPU-seconds of its thread, the most.
- step: milliseconds, median, 99th percentile and longest; those between exports.
- CPU: of the whole process, in all rounds without the steps; memory: by how many bytes per item they raise the peak.
"""

import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from benchmarks.deltas import Stream
from benchmarks.exports import train_quickly
from benchmarks.harness import command_line, head, row, status
from benchmarks.topics import TOPICS
from weir.contracts import Store
from weir.contracts.bundle_manifest import COMPACTED
from weir.trainer.config import TrainerConfig

app = command_line(__doc__)


class Steps:
    """Small steps of a model, and the seconds that each took."""

    def __init__(self) -> None:
        self.weight = torch.randn(64, 64)
        self.seconds: list[float] = []

    def run(self, seconds: float) -> None:
        """Step for so long."""
        end = time.perf_counter() + seconds
        while (before := time.perf_counter()) < end:
            for _ in range(20):
                self.weight = torch.tanh(self.weight @ self.weight)
            self.seconds.append(time.perf_counter() - before)


def measure(stream: Stream, rounds: int, chain: int, pause: float, *, beside: bool) -> None:
    """Print the line of one run."""
    stream.state.config = TrainerConfig.model_validate({**stream.config.model_dump(), "bundle_chain": chain})
    stream.export(np.arange(TOPICS))
    stream.keeper.beside, stream.keeper.large = beside, stream.items + 1
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    memory = status("VmRSS")
    steps, waits, spent, complete, whole = Steps(), list[float](), list[float](), 0, 0.0
    for _ in range(rounds):
        stream.world.drift()
        stream.place(stream.world.draw.choice(stream.items, stream.items // 100, replace=False))
        before, mine, every = time.perf_counter(), time.thread_time(), time.process_time()
        made, _ = stream.export(np.arange(TOPICS))
        waits.append(time.perf_counter() - before)
        spent.append(time.thread_time() - mine)
        complete += made.parent is None
        mine = time.thread_time()
        steps.run(pause)
        whole += time.process_time() - every - (time.thread_time() - mine)
    took = 1000 * np.array(steps.seconds)
    row(
        f"{stream.items:,}",
        "beside" if beside else "in the way",
        f"{complete}, {len(stream.store.glob(f'bundles/*/{COMPACTED}/MANIFEST.json'))}",
        float(np.median(waits)),
        max(waits),
        max(spent),
        f"{np.median(took):.2f}, {np.quantile(took, 0.99):.2f}, {took.max():.1f}",
        whole,
        round((status("VmHWM") - memory) / stream.items),
    )


@app.command(help=__doc__)
def main(
    items: Annotated[list[int], typer.Option(help="items; may be repeated")] = [200_000],  # noqa: B006 - typer copies it
    rounds: Annotated[int, typer.Option(help="exports, each of 1 % of the items")] = 10,
    chain: Annotated[int, typer.Option(help="trainer.bundle_chain")] = 4,
    pause: Annotated[float, typer.Option(help="seconds of steps between exports")] = 3.0,
    folder: Annotated[Path | None, typer.Option(help="where stores are written, and removed")] = None,
) -> None:
    """Measure and print, a run at a time."""
    torch.set_num_threads(1)
    train_quickly()
    head(
        "items",
        "complete",
        "exports, compactions",
        "export s",
        "longest s",
        "CPU s",
        "step ms",
        "CPU s in all",
        "memory B",
    )
    for count in items:
        for beside in (False, True):
            path = Path(tempfile.mkdtemp(prefix="weir-compaction-", dir=folder))
            try:
                measure(Stream.of(Store(str(path)), count, 64), rounds, chain, pause, beside=beside)
            finally:
                shutil.rmtree(path)


if __name__ == "__main__":
    app()
