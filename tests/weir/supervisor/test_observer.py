from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from contracts import Store, WindowLog
from pipelines.config import PipelineConfig
from pipelines.ingest import ingest
from serving.client import RetrievalClient
from serving.monitor.results import Examples, WindowRecall
from weir.config import load_settings
from weir.demo.generator import GeneratorConfig, generate
from weir.supervisor.observer import Observer, mean_recall


def recall(sequence: int, value: float | None, examples: int) -> WindowRecall:
    figures = {} if value is None else {20: value}
    counted = Examples(sampled=examples, model=examples, served=examples, popularity=examples)
    return WindowRecall(
        sequence=sequence,
        window=str(sequence),
        measured_at=0.0,
        bundle_versions=(),
        examples=counted,
        index=figures,
        model=figures,
        served=figures,
        popularity=figures,
    )


def test_recalls_are_means_over_events_of_the_newest_windows() -> None:
    recalls = [recall(0, 0.9, 1000), recall(1, 0.5, 100), recall(2, None, 0), recall(3, 0.2, 300)]
    assert mean_recall(recalls, "model", 20, last=2) == pytest.approx((0.5 * 100 + 0.2 * 300) / 400)
    assert mean_recall(recalls, "index", 20, last=1) == pytest.approx(0.2)
    assert mean_recall(recalls, "model", 10) is None
    assert mean_recall([], "model", 20) is None


def test_counts_come_from_the_store_and_nothing_is_settled_before_it_is_served(tmp_path: Path) -> None:
    store, log = Store(str(tmp_path / "store")), tmp_path / "log"
    log.mkdir()
    made = generate(GeneratorConfig(users=20, items=40, events=500, days=2, malformed=0.02))
    (log / "log.jsonl").write_bytes(made.lines)
    pipeline = PipelineConfig(log=str(log), metrics_port=0)
    settings = load_settings(None, {"store": store.url, "pipeline": pipeline.model_dump()})
    with RetrievalClient("127.0.0.1:1", timeout=0.2) as client:
        observer = Observer(store, settings, client, 0.0, "anna-0")
        assert (observer.look().read, observer.look().last_sequence) == (0, -1)
        ingest(store, pipeline, registry=CollectorRegistry())
        snapshot = observer.look()
        truth = made.truth
        assert (snapshot.events, snapshot.dead, snapshot.duplicates) == (
            truth.events,
            truth.malformed,
            truth.duplicates,
        )
        assert snapshot.read == truth.lines
        assert snapshot.last_sequence == WindowLog(store).committed()[-1].sequence
        assert snapshot.served is None
        assert not observer.is_settled(snapshot)
        assert observer.is_all_committed(snapshot)
        (log / "more.jsonl").write_bytes(made.lines)
        assert not observer.is_all_committed(snapshot)
