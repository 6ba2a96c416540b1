""""""

import logging
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from tests.pipelines import support
from tests.pipelines.support import Event
from weir.contracts import ITEMS_SCHEMA, EventClock, Store, WindowCounts, WindowLog, WindowManifest, WindowName
from weir.contracts.storage.artefacts import write_table
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.pipelines.metrics import Awaited, RecentItems, awaited_window


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


def said(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [int(record.getMessage()) for record in caplog.records]


def test_it_is_said_within_seconds_and_then_ever_less_often(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    awaited = Awaited(lambda: now[0])
    with caplog.at_level(logging.INFO):
        for second in range(4000):
            now[0] = second
            awaited.say(lambda: str(now[0]).removesuffix(".0"))
    assert said(caplog) == [2, 62, 182, 422, 902, 1862, 2822, 3782]


@given(commits=st.lists(st.integers(0, 500), max_size=20))
def test_no_minute_after_a_commit_has_a_word(commits: list[int]) -> None:
    now, spoken, last = [0.0], list[float](), -60.0
    awaited = Awaited(lambda: now[0])

    def sentence() -> str:
        spoken.append(now[0])
        return ""

    for second in range(600):
        now[0] = second
        if second in commits:
            awaited.over()
            last = second
        before = len(spoken)
        awaited.say(sentence)
        assert len(spoken) == before or second >= last + 60 or (second == 2 and last < 0)
    assert spoken or min(commits) <= 2


def test_the_window_its_end_the_watermark_and_its_holder_are_named() -> None:
    config = PipelineConfig(log="x", window_seconds=10, allowed_lateness_seconds=5, idle_seconds=7)
    told = awaited_window(config, 1_767_225_600_000, 1_767_225_604_000, "partition 3")
    for part in ("2026-01-01 00:00:00 to 2026-01-01 00:00:10", "partition 3", "5 s", "7 s", "00:00:04"):
        assert part in told


MINUTE = 60_000


def commit(log: WindowLog, minute: int, items: dict[int, int], *, pane: int = 0, minutes: int = 10) -> WindowManifest:
    name = WindowName(minute * MINUTE, (minute + minutes) * MINUTE, pane)
    rows: list[dict[str, Any]] = [{"item_key": key, "item_id": str(key), "count": n} for key, n in items.items()]
    sequence = len(log.committed())
    manifest = WindowManifest(
        sequence=sequence,
        attempt=f"{sequence:04d}",
        start_ms=name.start_ms,
        end_ms=name.end_ms,
        pane=pane,
        min_event_ms=name.start_ms,
        max_event_ms=name.start_ms,
        committed_at=0,
        counts=WindowCounts(),
        history_length=1,
        sketch={},
        files=(
            write_table(
                log.store, f"{name.folder(f'{sequence:04d}')}/{name.items()}", pa.Table.from_pylist(rows, ITEMS_SCHEMA)
            ),
        ),
    )
    log.commit(manifest)
    return manifest


@pytest.fixture
def log(tmp_path: Path) -> WindowLog:
    return WindowLog(Store(str(tmp_path)))


def test_nothing_to_compare(log: WindowLog) -> None:
    recent = RecentItems(log)
    assert all(map(math.isnan, recent.drift()))
    recent.add([commit(log, 0, {1: 5})])
    assert all(map(math.isnan, recent.drift()))


def test_consecutive_windows_are_compared_and_the_hour_before_counts_as_seen(log: WindowLog) -> None:
    recent = RecentItems(log)
    for minute, items in [(0, {8: 1}), (10, {7: 1}), (60, {1: 4}), (70, {1: 4, 7: 3, 8: 2, 9: 1})]:
        recent.add([commit(log, minute, items)])
    # Item 7 is an hour old and known, 8 is older and forgotten, 9 is new.
    assert recent.drift().unseen == pytest.approx(0.3)
    assert 0 < recent.drift().distance < 1
    recent.add([commit(log, 80, {1: 40, 7: 30, 8: 20, 9: 10})])
    assert recent.drift() == (0, 0)


def test_panes_of_a_window_are_one_and_late_ones_change_the_past(log: WindowLog) -> None:
    recent = RecentItems(log)
    recent.add([commit(log, 0, {1: 2}), commit(log, 10, {1: 1, 2: 1})])
    assert recent.drift().unseen == 0.5
    recent.add([commit(log, 10, {3: 2}, pane=1)])
    assert recent.drift().unseen == 0.75
    recent.add([commit(log, 0, {2: 1, 3: 9}, pane=1)])
    assert recent.drift().unseen == 0


def test_after_a_silence_the_last_window_counts(log: WindowLog) -> None:
    recent = RecentItems(log)
    recent.add([commit(log, 0, {1: 1}), commit(log, 10, {2: 3}), commit(log, 5_000, {1: 1, 2: 3})])
    assert recent.drift().unseen == 0.25


def test_a_new_process_knows_what_an_old_one_knew(log: WindowLog) -> None:
    recent = RecentItems(log)
    for minute in range(0, 300, 10):
        recent.add([commit(log, minute, {minute // 30: 3, minute // 70: 2, 99: 1})])
    assert RecentItems(log).drift() == recent.drift()
    assert len(recent._windows) == 7


def test_long_windows_look_back_by_their_length(log: WindowLog) -> None:
    day = 24 * 60
    recent = RecentItems(log)
    recent.add([commit(log, number * day, {number: 1, 9: 1}, minutes=day) for number in range(4)])
    assert recent.drift().unseen == 0.5
    recent.add([commit(log, 4 * day, {2: 1, 3: 1}, minutes=day)])
    assert recent.drift().unseen == 0.5


def test_a_damaged_window_is_left_out_aloud(log: WindowLog, caplog: pytest.LogCaptureFixture) -> None:
    manifest = commit(log, 0, {1: 1})
    log.store.write(f"{manifest.folder}/items.parquet", b"damage")
    recent = RecentItems(log)
    assert "left out of the drift" in caplog.text
    recent.add([commit(log, 10, {1: 1}), commit(log, 20, {1: 1, 2: 1})])
    assert recent.drift().unseen == 0.5
