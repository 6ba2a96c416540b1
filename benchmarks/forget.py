"""What forgetting a user costs, against what the store holds and what the user has touched.

    OMP_NUM_THREADS=1 python -m benchmarks.forget windows            # 10, 1,000 and 10,000 windows
    OMP_NUM_THREADS=1 python -m benchmarks.forget users              # 0.1, 1 and 5 million users; 6 GB of disk

CPU is that of `forget_users` in this process: user and system time. `windows` forgets somebody whom the store does not
know, somebody of its newest window, and somebody of every window, of 200 events each (`benchmarks.aged_store`). `users`
forgets a user of stores of `benchmarks.histories`: one base per user shard, and no window.
"""

import tempfile
import time
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from benchmarks.aged_store import AgedStore
from benchmarks.harness import Peak, command_line, head, row
from benchmarks.histories import SHARDS, base
from weir.contracts import Layout, Store, StoreFormat, WindowLog, ensure_format, hash_ids
from weir.pipelines.config import PipelineConfig
from weir.pipelines.forgotten import Forgotten
from weir.pipelines.redaction import RedactionReport, forget_users

app = command_line(__doc__)
EVENTS: Final = 10
Sizes = Annotated[list[int] | None, typer.Option("--size", help="what is stored; may be repeated")]


def forgotten(store: Store, config: PipelineConfig, user: str) -> tuple[RedactionReport, list[object]]:
    """Forget a user; return the report, and the cells of CPU seconds, megabytes written and of own memory."""
    before, started = store.find(), time.process_time()
    with Peak() as peak:
        report = forget_users(store, config, Forgotten.of([user], ""))
    spent = time.process_time() - started
    written = sum(stat.size for name, stat in store.find().items() if name not in before)
    return report, [spent, written / 1e6, peak.own / 1e6]


@app.command()
def windows(size: Sizes = None) -> None:
    """Print the table of stores of any age."""
    head("windows", "user of", "panes replaced", "CPU s", "written MB", "memory MB")
    for count in size or (10, 1_000, 10_000):
        with tempfile.TemporaryDirectory(prefix="weir-forget-") as folder:
            aged = AgedStore.make(Path(folder), count)
            aged.arrive(EVENTS, "guest")
            aged.ingest()
            for who, user in (("none", "stranger"), ("one", "guest-1"), ("all", "user-1")):
                report, cells = forgotten(aged.store, aged.config, user)
                row(f"{count:,}", who, report.panes, *cells)


@app.command()
def users(size: Sizes = None) -> None:
    """Print the table of stores with any number of users."""
    head("users", "files replaced", "CPU s", "written MB", "memory MB")
    for count in size or (100_000, 1_000_000, 5_000_000):
        with tempfile.TemporaryDirectory(prefix=".forget-", dir=Path.cwd()) as folder:
            store, rng = Store(folder), np.random.default_rng(1)
            ensure_format(store, StoreFormat(layout=Layout(window_ms=3_600_000, user_shards=SHARDS, sketch={})))
            others = rng.integers(-(1 << 63), (1 << 63) - 1, count - 1)
            files = base(store, np.unique(np.append(others, hash_ids(["ann"]))), rng)
            WindowLog(store).commit(histories=tuple(files.files))
            report, cells = forgotten(store, PipelineConfig(), "ann")
            row(f"{count:,}", report.history_files, *cells)


if __name__ == "__main__":
    app()
