"""Committing again what a retried bundle had committed before."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from contracts import ITEMS_SCHEMA, Store, WindowCounts, WindowLog, WindowManifest, WindowName
from pipelines.blocks import PartitionProgress, Progress
from pipelines.config import PipelineConfig
from pipelines.positions import Committed, Run
from pipelines.sources import Format, Partition
from pipelines.transforms.commit import CommitWindows
from pipelines.transforms.write import ShardReport
from sketches import CountMinSketch

CONFIG = PipelineConfig(window_seconds=10)
RUN = Run(
    Committed(), {"a": Partition("a", "a", Format.JSON_LINES, 9)}, {"a": 0}, {}, {}, CONFIG.window_ms, 0, flush=True
)
PROGRESS = Progress(25_000, {"a": PartitionProgress(9)})


def report(start: int, items: list[tuple[int, str, int]]) -> ShardReport:
    table = pa.Table.from_pylist([dict(zip(ITEMS_SCHEMA.names, row, strict=True)) for row in items], ITEMS_SCHEMA)
    count = sum(row[2] for row in items)
    return ShardReport(
        WindowName(start, start + 10_000), None, table, WindowCounts(events=count, positives=count), start, start + 5
    )


REPORTS = [
    report(20_000, [(5, "e", 1)]),
    report(0, [(3, "c", 2), (1, "a", 1)]),
    report(10_000, []),
    report(0, [(3, "c", 4)]),
]


def commit(store: Store, run: Run = RUN, reports: list[ShardReport] = REPORTS) -> list[WindowManifest]:
    return list(CommitWindows(store, run, CONFIG).process((0, reports), PROGRESS))


def numbers(store: Store) -> list[tuple[int, int, int, bool]]:
    return [(m.sequence, m.run, m.start_ms, m.last_of_run) for m in WindowLog(store).committed()]


ALL = [(0, 0, 0, False), (1, 0, 10_000, False), (2, 0, 20_000, True)]


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_a_retry_goes_on_where_it_was_killed(tmp_path: Path, done: int) -> None:
    store = Store(str(tmp_path))
    commit(store)
    before = {name: store.read(name) for name in store.glob("windows/*/*/*")}
    for manifest in WindowLog(store).committed()[done:]:
        store.remove(f"{manifest.name.folder}/MANIFEST.json")
    assert len(commit(store)) == 3 - done
    assert numbers(store) == ALL
    for manifest in WindowLog(store).committed()[:done]:
        names = [name for name in before if name.startswith(manifest.name.folder)]
        assert {name: store.read(name) for name in names} == {name: before[name] for name in names}


def test_items_of_shards_are_merged_and_windows_without_positives_have_an_empty_sketch(tmp_path: Path) -> None:
    log = WindowLog(Store(str(tmp_path)))
    commit(log.store)
    first, second, _ = log.committed()
    assert log.items(first).to_pylist() == [
        {"item_key": 1, "item_id": "a", "count": 1},
        {"item_key": 3, "item_id": "c", "count": 6},
    ]
    assert (first.counts.events, first.min_event_ms, first.max_event_ms) == (7, 0, 5)
    assert CountMinSketch.from_bytes(log.sketch(second)).total == 0
    assert first.sketch == {"kind": "count_min", "width": 65536, "depth": 4, "conservative": True}


def test_a_later_run_is_numbered_on(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    commit(store)
    late = [replace(report(0, []), name=WindowName(0, 10_000, 1)), report(30_000, [])]
    commit(store, reports=late)
    assert numbers(store) == [*ALL, (3, 3, 0, False), (4, 3, 30_000, True)]
