"""What is read of a store for people, as it grows and as it is damaged."""

import random
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.weir.up.damage import COMMITS, WINDOWS, bad_byte, cut, whole_store
from weir.contracts import CorruptArtefactError, Store, WindowLog
from weir.demo.generator import GeneratorConfig, generate
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.readers import discover
from weir.store_status import StoreStatus
from weir.up.status import covers


def test_totals_taken_in_run_by_run_are_those_of_the_whole_store(tmp_path: Path) -> None:
    store, log = Store(str(tmp_path / "store")), tmp_path / "log"
    log.mkdir()
    lines = generate(GeneratorConfig(users=20, items=40, events=600, days=3, malformed=0.02)).lines.splitlines(
        keepends=True
    )
    random.Random(0).shuffle(lines)
    pipeline = PipelineConfig(log=str(log), metrics_port=0)
    status = StoreStatus(store)
    for part in range(3):
        (log / f"part-{part}.jsonl").write_bytes(b"".join(lines[part::3]))
        assert not covers(status.log, discover(str(log)))
        ingest(store, pipeline, registry=CollectorRegistry())
        assert status.catch_up()
        assert covers(status.log, discover(str(log)))
        assert status.catch_up() == []
        fresh = StoreStatus(store)
        fresh.catch_up()
        assert status.log.cursor == fresh.log.cursor
        for name in ("counts", "dead", "committed_at"):
            assert getattr(status.log, name) == getattr(fresh.log, name)
    counts = status.log.counts
    assert counts.events + counts.duplicates + counts.ignored + status.log.dead == len(lines)
    assert status.log.cursor.sequence == len(WindowLog(store).committed())


def test_a_damaged_commit_leaves_the_totals_as_they_were(tmp_path: Path) -> None:
    store = whole_store(str(tmp_path))
    status = StoreStatus(store)
    name = bad_byte(COMMITS)(store)
    with pytest.raises(CorruptArtefactError, match=name):
        status.catch_up()
    assert (status.log.cursor.sequence, status.log.counts.events) == (0, 0)


def test_an_unreadable_part_keeps_its_last_value_until_it_can_be_read_again(tmp_path: Path) -> None:
    store = whole_store(str(tmp_path))
    status = StoreStatus(store)
    status.refresh()
    newest, recalls = status.newest, status.recalls
    assert newest is not None
    assert (len(recalls), status.problems) == (WINDOWS, {})
    manifest = f"bundles/{newest.version}/MANIFEST.json"
    store.write("bundles/00000009-0000000009/MANIFEST.json", store.read(manifest)[:40])
    clock = store.read("CLOCK.json")
    cut("CLOCK.json")(store)
    status.refresh()
    assert status.problems.keys() == {"bundles", "CLOCK.json"}
    assert (status.newest, status.recalls, status.clock) == (newest, recalls, None)
    store.write("CLOCK.json", clock)
    store.remove("bundles/00000009-0000000009")
    status.refresh()
    assert (status.newest, status.problems) == (newest, {})
    assert status.clock is not None
