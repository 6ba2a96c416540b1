"""What a server pays for a delta, by the way it takes it and by the number of items stored.

    OMP_NUM_THREADS=1 python -m benchmarks.takes run              # 200,000 and 2 million items; 4 GB of memory

Each store has a complete bundle (IVF, SQfp16) and a chain of deltas, which move the same number of items, add a
hundredth of that and remove as many. Vectors and lists are random: the costs do not depend on them. For each way
(`serving.deltas`), a process of its own follows the store and takes the deltas one by one. The columns are medians:

- CPU: of the process, from the promotion until the version is served.
- pause: how long the thread that searches was held up; nothing where the index is changed beside it.
- memory: what the process needed at most while it took the deltas, beyond what it had before the first.
- grown: what it has more after the last delta than after the first, for each delta.
"""

import io
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import faiss
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import typer
from prometheus_client import CollectorRegistry

from benchmarks.harness import I64, command_line, head, row, status
from benchmarks.states import item_id
from weir.contracts import (
    BUNDLE_ITEMS_SCHEMA,
    BundleFile,
    BundleLog,
    BundleManifest,
    FileEntry,
    IndexInfo,
    Store,
    columns,
    hash_ids,
)
from weir.contracts.artefacts import write_table
from weir.contracts.item_rows import FIRST_ITEM_ROW
from weir.serving.in_place import DeltaPolicy
from weir.serving.memory import Memory
from weir.serving.metrics import BundleMetrics
from weir.serving.watcher import BundleWatcher
from weir.trainer.config import TowerConfig
from weir.trainer.export.tower import tower_to_onnx
from weir.trainer.towers import build_tower

app = command_line(__doc__)
How = Literal["clone", "in_place"]
TOWER: Final = TowerConfig(kind="mean_pooling", dimension=64, history_length=4)
BLOCK: Final = 1 << 17


class Chain:
    """Writes a complete bundle of so many items, and deltas on top."""

    def __init__(self, store: Store, items: int) -> None:
        self.store, self.log, self.live = store, BundleLog(store), np.arange(items)
        self.draw, self.lists, self.rows = np.random.default_rng(0), round(4 * items**0.5), items
        self.tower = tower_to_onnx(build_tower(TOWER, 0), TOWER)
        index, vectors = self._index(items), self._vectors(items)
        for at in range(0, items, BLOCK):
            some, rows = vectors[at : at + BLOCK], np.arange(at, min(at + BLOCK, items))
            lists = self._some_lists(len(rows))
            index.add_core(len(rows), faiss.swig_ptr(some), faiss.swig_ptr(rows), faiss.swig_ptr(lists))
        data = faiss.serialize_index(index).tobytes()
        self._commit("v0", self.live, vectors, [self.store.write(f"bundles/v0/{BundleFile.INDEX}", data)])

    def change(self, number: int, moved: int) -> None:
        """Write a delta."""
        few = max(1, moved // 100)
        gone, chosen = np.split(self.draw.choice(self.live, moved + few, replace=False), [few])
        new = np.arange(self.rows, self.rows + few)
        self.rows, self.live = self.rows + few, np.concatenate([np.setdiff1d(self.live, gone), new])
        rows, folder = np.concatenate([np.sort(chosen), new]), f"bundles/v{number}"
        files = [
            _write(self.store, f"{folder}/{BundleFile.REMOVED}", gone.astype(np.int32)),
            _write(self.store, f"{folder}/{BundleFile.LISTS}", self._some_lists(len(rows)).astype(np.int32)),
        ]
        parent = self.log.manifest_and_ref(f"v{number - 1}")[1]
        facts = {"schema_version": 2, "parent": parent, "base": "v0", "depth": number}
        facts |= {"changed": len(rows), "removed": len(gone)}
        self._commit(f"v{number}", rows, self._vectors(len(rows)), files, **facts)

    def _index(self, items: int) -> Any:
        index: Any = faiss.index_factory(TOWER.dimension, f"IVF{self.lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
        index.quantizer.add(self._vectors(self.lists))
        index.train(self._vectors(min(items, 100)))
        return index

    def _vectors(self, count: int) -> npt.NDArray[np.float32]:
        made = self.draw.standard_normal((count, TOWER.dimension), np.float32)
        made /= np.linalg.norm(made, axis=1, keepdims=True)
        return made

    def _some_lists(self, count: int) -> I64:
        return self.draw.integers(0, self.lists, count)

    def _commit(
        self, version: str, rows: I64, vectors: npt.NDArray[np.float32], files: list[FileEntry], **facts: Any
    ) -> None:
        ids = [item_id(number) for number in rows.tolist()]
        values = {
            columns.ROW: rows.astype(np.int32),
            columns.ITEM_ID: ids,
            columns.ITEM_KEY: hash_ids(ids),
            columns.POPULARITY: self.draw.random(len(rows)),
        }
        folder = f"bundles/{version}"
        special = np.zeros((FIRST_ITEM_ROW, TOWER.dimension), np.float32)
        files += [
            write_table(self.store, f"{folder}/{BundleFile.ITEMS}", pa.table(values, schema=BUNDLE_ITEMS_SCHEMA)),
            _write(self.store, f"{folder}/{BundleFile.VECTORS}", vectors),
            _write(self.store, f"{folder}/{BundleFile.EMBEDDINGS}", np.concatenate([special, vectors])),
            self.store.write(f"{folder}/{BundleFile.TOWER}", self.tower),
        ]
        about = {"created_at": time.time(), "trained_sequence": 0, "trained_window": "w", "max_event_ms": 0}
        kind = IndexInfo(type=f"IVF{self.lists},SQfp16", parameters={"nprobe": 16})
        shape = {"items": len(self.live), "dimension": TOWER.dimension, "history_length": TOWER.history_length}
        judged = {"metric": "cosine", "promoted": True, "verdict": "promoted", "software_version": "0"}
        fields = {**about, **shape, **judged, **facts, "version": version, "index": kind, "files": tuple(files)}
        self.log.commit(BundleManifest.model_validate(fields))


def _write(store: Store, name: str, array: npt.NDArray[Any]) -> FileEntry:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return store.write(name, buffer.getvalue(), rows=len(array))


@app.command(hidden=True)
def take(store: str, how: str, deltas: int) -> None:
    """Take the deltas of a store, and print what each cost."""
    faiss.omp_set_num_threads(1)
    registry, log = CollectorRegistry(), BundleLog(Store(store))
    policy = DeltaPolicy(how, Memory.found())  # type: ignore[arg-type]
    watcher = BundleWatcher(Store(store), BundleMetrics(registry), policy=policy)
    found = []

    def pause() -> float:
        return registry.get_sample_value("weir_bundle_delta_pause_seconds_sum") or 0.0

    for number in range(deltas + 1):
        log.promote(f"v{number}")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what there is
        before, spent, paused = status("VmRSS"), time.process_time(), pause()
        if not watcher.refresh():
            raise RuntimeError(f"v{number} was not taken")
        cpu = time.process_time() - spent
        sizes = {"before": before, "peak": status("VmHWM"), "after": status("VmRSS")}
        found.append({"cpu": cpu, "pause": pause() - paused, **sizes})
    print(json.dumps(found))


@app.command(help=__doc__)
def run(
    items: Annotated[list[int], typer.Option(help="items; may be repeated")] = [200_000, 2_000_000],  # noqa: B006 - typer copies it
    moved: Annotated[int, typer.Option(help="items that a delta moves")] = 2000,
    deltas: Annotated[int, typer.Option(min=2)] = 8,
    folder: Annotated[Path | None, typer.Option(help="where stores are written, and removed")] = None,
) -> None:
    """Measure and print, a store at a time."""
    head("items", "moved", "how", "CPU, s", "slowest, s", "pause, ms", "longest, ms", "memory, MB", "grown, MB")
    for count in items:
        path = Path(tempfile.mkdtemp(prefix="weir-takes-", dir=folder))
        try:
            chain = Chain(Store(str(path)), count)
            for number in range(1, deltas + 1):
                chain.change(number, moved)
            for how in get_args(How):
                report(count, moved, how, taken(path, how, deltas))
        finally:
            shutil.rmtree(path)


def taken(path: Path, how: str, deltas: int) -> list[dict[str, float]]:
    """Let a process take the deltas of a store; return what each cost."""
    command = [sys.executable, "-m", "benchmarks.takes", "take", str(path), how, str(deltas)]
    found: list[dict[str, float]] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found[1:]


def report(items: int, moved: int, how: str, found: list[dict[str, float]]) -> None:
    """Print a row."""
    cpu, pause = ([one[name] for one in found] for name in ("cpu", "pause"))
    memory = max(0, *(one["peak"] - found[0]["before"] for one in found))
    grown = (found[-1]["after"] - found[0]["after"]) / (len(found) - 1)
    times = float(np.median(cpu)), max(cpu), 1000 * float(np.median(pause)), 1000 * max(pause)
    row(f"{items:,}", f"{moved:,}", how, *times, memory / 1e6, grown / 1e6)


if __name__ == "__main__":
    app()
