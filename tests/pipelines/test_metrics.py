from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from contracts import Store
from pipelines.ingest import ingest
from tests.pipelines import support
from tests.pipelines.support import Event


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
    assert value("weir_pipeline_watermark_timestamp_seconds") == support.ORIGIN + 11
    assert value("weir_pipeline_window_commit_seconds_count") == summary.panes == 2
    assert value("weir_pipeline_window_distinct_items") == 0
    assert value("weir_pipeline_sketch_fill_ratio") == 0
    assert summary.read == 12 + 1 + 3
    text = generate_latest(registry).decode()
    assert text.count("# HELP") == text.count("# TYPE")
    assert all(line.endswith(".") for line in text.splitlines() if line.startswith("# HELP") and "_created" not in line)
