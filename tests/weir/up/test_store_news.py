import random
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.weir.up.damage import COMMITS, bad_byte, whole_store
from weir.contracts import CorruptArtefactError, Store, WindowLog
from weir.demo.generator import GeneratorConfig, generate
from weir.pipelines.config import PipelineConfig
from weir.pipelines.ingest import ingest
from weir.readers import discover
from weir.up.store_news import CommitTotals


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
