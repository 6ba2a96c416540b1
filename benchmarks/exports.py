"""What the export of a delta costs the trainer, against what has changed and what is stored.

    OMP_NUM_THREADS=1 python -m benchmarks.exports                    # 0.2 and 2 million items; 8 GB of memory
    OMP_NUM_THREADS=1 python -m benchmarks.exports --items 200000 --share .01

The stream of `benchmarks.deltas`, without a server: each round a share of the items moves to where its topic is by
then, and the trainer's own export publishes them. Lists are trained in two rounds on 16 vectors each, since no recall
is measured here. Columns are medians over rounds that were deltas, after the first, which compares all items.

- export: CPU-seconds of `export_bundle`; gate: those of them in which both bundles answer the gate's queries.
- written: of the bundle; memory: by how much the rounds raise the peak.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
import torch
import typer

from benchmarks.deltas import Stream
from benchmarks.harness import command_line, head, row, status
from benchmarks.topics import TOPICS
from weir.contracts import Store
from weir.trainer.export.cases import Cases
from weir.trainer.export.clusters import Assigned, Clusters
from weir.trainer.export.servable import Servable

app = command_line(__doc__)
Floats = npt.NDArray[np.float32]
SHARES: Final = (0.001, 0.01, 0.1)


class Gate:
    """Notes the CPU-seconds in which bundles answer the gate, `spent`."""

    def __init__(self) -> None:
        self.spent, self._hits = 0.0, Servable.hits

    def __enter__(self) -> "Gate":
        def timed(servable: Servable, cases: Cases, k: int) -> npt.NDArray[np.bool_]:
            started = time.process_time()
            found = self._hits(servable, cases, k)
            self.spent += time.process_time() - started
            return found

        Servable.hits = timed  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        Servable.hits = self._hits  # type: ignore[method-assign]


def train_quickly() -> None:
    """Let the lists of indexes be trained in little time; for this process."""
    original = Clusters.trained

    def quick(empty: Any, kind: str, vectors: Floats) -> tuple[Clusters, Assigned]:
        empty.cp.niter, empty.cp.max_points_per_centroid, empty.cp.min_points_per_centroid = 2, 16, 1
        return original(empty, kind, vectors)

    Clusters.trained = quick  # type: ignore[method-assign]


def rounds_of(stream: Stream, share: float, rounds: int) -> Iterator[tuple[float, float, float]]:
    """Yield CPU-seconds, those of the gate, and megabytes written, of each round that was a delta."""
    for _ in range(rounds):
        stream.world.drift()
        stream.place(stream.world.draw.choice(stream.items, round(share * stream.items), replace=False))
        with Gate() as gate:
            made, seconds = stream.export(np.arange(TOPICS))
        if made.depth:
            yield seconds, gate.spent, sum(file.size for file in made.files) / 1e6


@app.command(help=__doc__)
def main(
    items: Annotated[list[int], typer.Option(help="items; may be repeated")] = [200_000, 2_000_000],  # noqa: B006 - typer copies it
    share: Annotated[list[float], typer.Option(help="of them that move in a round; may be repeated")] = list(SHARES),  # noqa: B006
    rounds: Annotated[int, typer.Option(help="rounds for each share")] = 4,
    folder: Annotated[Path | None, typer.Option(help="where stores are written, and removed")] = None,
) -> None:
    """Measure and print, a store at a time."""
    torch.set_num_threads(1)
    train_quickly()
    head("items", "changed", "rounds", "export CPU s", "of it the gate", "written MB", "memory MB")
    for count in items:
        path = Path(tempfile.mkdtemp(prefix="weir-exports-", dir=folder))
        try:
            stream = Stream.of(Store(str(path)), count, 64)
            list(rounds_of(stream, SHARES[0], 2))
            for part in share:
                Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
                before = status("VmRSS")
                found = list(rounds_of(stream, part, rounds))
                seconds, gate, written = np.median(found, axis=0).tolist()
                memory = (status("VmHWM") - before) / 1e6
                row(f"{count:,}", f"{part:.1%}", len(found), seconds, gate, written, memory)
        finally:
            shutil.rmtree(path)


if __name__ == "__main__":
    app()
