import math
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.pipelines import support
from tests.pipelines.support import Event
from weir.contracts import EventClock, Store
from weir.pipelines.ingest import ingest


def test_metrics_agree_with_the_commits(tmp_path: Path) -> None:
    events = [Event("u", f"i{n % 3}", n, ["click", "skip", "view"][n % 3], f"e{n}") for n in range(12)]
    lines = [event.line() for event in events]
    support.write_lines(tmp_path / "log/a.jsonl", [*lines, lines[0], "bad\n", '{"user_id": ""}\n', "worse\n"])
    registry, store = CollectorRegistry(), Store(str(tmp_path / "store"))
    summary = ingest(store, support.config(tmp_path), registry=registry)
    value = registry.get_sample_value
    assert value("weir_pipeline_events_total", {"label": "positive"}) == 4
    assert value("weir_pipeline_events_total", {"label": "negative"}) == 4
    assert value("weir_pipeline_ignored_events_total") == 4 == summary.ignored
    assert value("weir_pipeline_duplicates_total") == 1 == summary.duplicates
    assert value("weir_pipeline_dead_letters_total", {"reason": "malformed_json"}) == 2
    assert value("weir_pipeline_dead_letters_total", {"reason": "missing_field"}) == 1
    assert value("weir_pipeline_dead_letters_total", {"reason": "not_utf8"}) == 0
    assert value("weir_pipeline_watermark_timestamp_seconds") == support.ORIGIN + 11
    assert value("weir_pipeline_window_commit_seconds_count") == summary.panes == 2
    assert value("weir_pipeline_window_distinct_items") == 0
    assert value("weir_pipeline_sketch_fill_ratio") == 0
    assert summary.read == 12 + 1 + 3
    assert value("weir_sketch_fill_ratio", {"scope": "window"}) == 0
    assert math.isnan(sample(registry, "drift_distance"))
    text = generate_latest(registry).decode()
    assert text.count("# HELP") == text.count("# TYPE")
    assert all(line.endswith(".") for line in text.splitlines() if line.startswith("# HELP") and "_created" not in line)


def test_progress_is_told_by_the_wall_clock_and_survives_a_restart(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    EventClock(event_origin=support.ORIGIN, wall_origin=5000, speed=10, event_end=support.ORIGIN + 1000).save(store)
    names = ("window_sequence", "watermark_timestamp_seconds", "watermark_wall_timestamp_seconds")

    def progress(*events: Event) -> list[float | None]:
        registry = CollectorRegistry()
        for event in events:
            support.write_lines(tmp_path / f"log/{event.item}.jsonl", [event.line()])
        ingest(store, support.config(tmp_path), registry=registry)
        assert registry.get_sample_value("weir_pipeline_window_open_seconds") == pytest.approx((10 + 5) / 10)
        return [registry.get_sample_value(f"weir_pipeline_{name}") for name in names]

    assert progress(Event("u", "a", 50)) == [0, support.ORIGIN + 50, 5005]
    assert progress(Event("u", "late", 7)) == [1, support.ORIGIN + 50, 5005]
    assert progress() == [1, support.ORIGIN + 50, 5005]


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float:
    value = registry.get_sample_value(f"weir_sketch_{name}", labels)
    assert value is not None
    return value


@pytest.mark.parametrize("kind", ["count_min", "exact"])
def test_sketches_and_drift_are_those_of_the_newest_window(tmp_path: Path, kind: str) -> None:
    registry, store = CollectorRegistry(), Store(str(tmp_path / "store"))
    settings = support.config(tmp_path, sketch={"kind": kind, "width": 1024})
    first = [Event(f"u{n}", f"i{n % 4}", n % 10) for n in range(40)]
    second = [Event(f"u{n % 2}", "i0" if n % 4 else "new", 10 + n % 10) for n in range(40)]
    support.write_lines(tmp_path / "log/a.jsonl", [event.line() for event in first])
    ingest(store, settings, registry=registry)
    assert sample(registry, "distinct_keys", scope="window") == pytest.approx(4, abs=0.1)
    assert sample(registry, "distinct_keys", scope="window_users") == pytest.approx(40, abs=2)
    assert math.isnan(sample(registry, "drift_distance"))
    assert math.isnan(sample(registry, "unseen_events_ratio"))

    again = CollectorRegistry()
    support.write_lines(tmp_path / "log/b.jsonl", [event.line() for event in second])
    ingest(store, settings, registry=again)
    assert sample(again, "distinct_keys", scope="window") == pytest.approx(2, abs=0.1)
    assert sample(again, "distinct_keys", scope="window_users") == pytest.approx(2, abs=0.5)
    assert sample(again, "log_q_error_nats", scope="window") < 0.01
    assert sample(again, "unseen_events_ratio") == 0.25
    assert 0.5 < sample(again, "drift_distance") < 1
    support.check_counts(store)
