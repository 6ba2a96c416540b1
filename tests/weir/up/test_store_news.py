import random
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from contracts import CorruptArtefactError, Store, WindowLog, WindowManifest
from logs import discover
from pipelines.config import PipelineConfig
from pipelines.ingest import ingest
from serving.monitor.results import save
from tests.serving.support import write_window
from tests.weir.up.damage import COMMITS, bad_byte, recall, whole_store
from weir.demo.generator import GeneratorConfig, generate
from weir.up.store_news import CommitTotals, NewestRecalls


def test_totals_taken_in_run_by_run_are_those_of_the_whole_store(tmp_path: Path) -> None:
    store, log = Store(str(tmp_path / "store")), tmp_path / "log"
    log.mkdir()
    lines = generate(GeneratorConfig(users=20, items=40, events=600, days=3, malformed=0.02)).lines.splitlines(
        keepends=True
    )
    random.Random(0).shuffle(lines)
    pipeline = PipelineConfig(log=str(log), metrics_port=0)
    committed = CommitTotals(store)
    for part in range(3):
        (log / f"part-{part}.jsonl").write_bytes(b"".join(lines[part::3]))
        assert not committed.covers(discover(str(log)))
        ingest(store, pipeline, registry=CollectorRegistry())
        assert committed.catch_up()
        assert committed.covers(discover(str(log)))
        assert committed.catch_up() == []
        fresh = CommitTotals(store)
        fresh.catch_up()
        assert committed.windows == fresh.windows
        for name in ("counts", "dead", "committed_at"):
            assert getattr(committed.state, name) == getattr(fresh.state, name)
    counts = committed.state.counts
    assert counts.events + counts.duplicates + counts.ignored + committed.state.dead == len(lines)
    assert committed.windows == len(WindowLog(store).committed())


def test_a_damaged_commit_leaves_the_totals_as_they_were(tmp_path: Path) -> None:

    store = whole_store(str(tmp_path))
    committed = CommitTotals(store)
    name = bad_byte(COMMITS)(store)
    with pytest.raises(CorruptArtefactError, match=name):
        committed.catch_up()
    assert (committed.windows, committed.state.counts.events) == (0, 0)


def windows(store: Store, count: int) -> list[WindowManifest]:
    return [write_window(store, sequence, []) for sequence in range(count)]


def measure(store: Store, *manifests: WindowManifest) -> None:
    for manifest in manifests:
        save(store, recall(manifest.sequence, str(manifest.name)))


def sequences(measured: NewestRecalls) -> list[int]:
    return [result.sequence for result in measured.recalls]


def test_results_come_in_commit_order_as_they_are_written(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    made, measured = windows(store, 4), NewestRecalls(store)
    measured.expect(made)
    measured.catch_up()
    assert sequences(measured) == []
    measure(store, *made[:2])
    measured.catch_up()
    assert sequences(measured) == [0, 1]
    measure(store, *made[2:])
    measured.catch_up()
    assert sequences(measured) == [0, 1, 2, 3]


def test_windows_that_the_monitor_left_behind_are_passed_over(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    made, measured = windows(store, 5), NewestRecalls(store)
    measured.expect(made)
    measure(store, made[1], made[2], made[4])
    measured.catch_up()
    assert sequences(measured) == [1, 2, 4]


def test_a_damaged_result_is_named_once_and_the_next_one_is_read(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    made, measured = windows(store, 3), NewestRecalls(store)
    measured.expect(made)
    measure(store, *made)
    name = f"monitor/{made[1].name}.json"
    store.write(name, b"\xff{")
    with pytest.raises(CorruptArtefactError, match=name):
        measured.catch_up()
    measured.catch_up()
    assert sequences(measured) == [0, 2]


def test_of_an_old_store_only_the_newest_are_read(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    made, measured = windows(store, 30), NewestRecalls(store)
    measure(store, *made)
    measured.expect(made)
    measured.catch_up()
    assert sequences(measured) == list(range(10, 30))
