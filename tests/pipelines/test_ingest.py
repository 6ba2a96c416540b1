"""The driver: bad files, what a run counts, and when runs are due."""

import gzip
import json
import logging
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from contracts import Store
from pipelines.config import PipelineConfig
from pipelines.ingest import IngestSummary, ingest
from pipelines.plan import LayoutError
from tests.pipelines import support
from tests.pipelines.support import Event

CLICKS = [Event("ann", f"item-{number}", number) for number in range(12)]


def bring_in(folder: Path, **changes: Any) -> IngestSummary:
    config = support.config(folder, **changes)
    return ingest(Store(str(folder / "store")), config, registry=CollectorRegistry())


def letters(folder: Path) -> dict[str, list[str]]:
    root = folder / "store/dead-letters"
    return {
        str(path.relative_to(root)): [json.loads(line)["reason"] for line in path.read_text().splitlines()]
        for path in sorted(root.rglob("*.jsonl"))
        if path.is_file()
    }


def test_every_kind_of_bad_file_is_named_and_spares_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "log"
    support.write_lines(log / "good.jsonl", [event.line() for event in CLICKS])
    support.write_parquet(log / "whole.parquet", CLICKS)
    (log / "cut.parquet").write_bytes((log / "whole.parquet").read_bytes()[:-30])
    (log / "whole.parquet").unlink()
    lines = [Event("bob", f"item-{number}", number).line() for number in range(40)]
    (log / "cut.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode())[:-8])
    for name in ("empty.jsonl", "empty.jsonl.gz", "empty.parquet"):
        (log / name).touch()
    with caplog.at_level(logging.ERROR, "pipelines"):
        summary = bring_in(tmp_path)
    assert (summary.valid, summary.dead) == (12 + 40, 2)
    assert letters(tmp_path) == {
        "cut.jsonl.gz/000000000000039.jsonl": ["truncated_gzip"],
        "cut.parquet/file.jsonl": ["unreadable_file"],
    }
    assert len(caplog.messages) == 2
    for name in ("cut.jsonl.gz", "cut.parquet"):
        assert sum(name in message for message in caplog.messages) == 1


def test_a_repaired_file_is_read_and_its_letters_go(tmp_path: Path) -> None:
    path = tmp_path / "log/a.parquet"
    support.write_parquet(path, CLICKS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    assert bring_in(tmp_path).valid == 0
    assert letters(tmp_path) == {"a.parquet/file.jsonl": ["unreadable_file"]}
    path.write_bytes(whole)
    assert bring_in(tmp_path).valid == 12
    assert letters(tmp_path) == {}


def test_a_file_that_shrinks_is_refused_and_nothing_is_counted_again(tmp_path: Path) -> None:
    path = tmp_path / "log/a.jsonl"
    support.write_lines(path, [event.line() for event in CLICKS])
    assert bring_in(tmp_path).valid == 12
    support.write_lines(path, [event.line() for event in CLICKS[:5]], "w")
    assert bring_in(tmp_path).valid == 0
    assert letters(tmp_path) == {"a.jsonl/file.jsonl": ["shrunken_file"]}


def test_an_unfinished_last_line_is_counted_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log/a.jsonl"
    [first, second, third] = [event.line() for event in CLICKS[:3]]
    support.write_lines(path, [first, second[:20]])
    assert bring_in(tmp_path).valid == 1
    assert list(letters(tmp_path).values()) == [["malformed_json"]]
    support.write_lines(path, [second[20:], third.rstrip("\n")])
    assert bring_in(tmp_path).valid == 2
    assert letters(tmp_path) == {}
    support.write_lines(path, ["\n", CLICKS[3].line()])
    assert bring_in(tmp_path).valid == 1
    assert support.stored_events(Store(str(tmp_path / "store"))) == support.expected_events(CLICKS[:4])


def test_dead_letters_are_summed_over_runs_and_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "log/a.jsonl"
    for number in range(3):
        support.write_lines(path, ["bad\n" * 30, CLICKS[number].line()])
        assert bring_in(tmp_path).dead == 30
        [span] = support.committed(Store(str(tmp_path / "store")))[-1].sources.values()
        assert (span.dead, span.stop, span.size) == (30 * (number + 1), path.stat().st_size, path.stat().st_size)


def test_nothing_new_is_no_run(tmp_path: Path) -> None:
    support.write_lines(tmp_path / "log/a.jsonl", [event.line() for event in CLICKS])
    assert bring_in(tmp_path).runs == 1
    assert bring_in(tmp_path) == IngestSummary()


def test_a_copy_in_a_later_pane_is_a_duplicate_and_a_new_event_is_late(tmp_path: Path) -> None:
    first = Event("ann", "a", 1, event_id="one")
    support.write_lines(tmp_path / "log/a.jsonl", [first.line(), first.line()])
    summary = bring_in(tmp_path)
    assert (summary.valid, summary.duplicates, summary.late) == (1, 1, 0)
    support.write_lines(tmp_path / "log/b.jsonl", [first.line(), Event("ann", "b", 2, event_id="two").line()])
    summary = bring_in(tmp_path)
    assert (summary.valid, summary.duplicates, summary.late, summary.windows, summary.panes) == (1, 1, 1, 0, 1)


def test_windows_of_a_run_are_committed_in_order_and_the_last_is_marked(tmp_path: Path) -> None:
    support.write_lines(tmp_path / "log/a.jsonl", [Event("u", "i", second).line() for second in (35, 2, 21, 11)])
    bring_in(tmp_path)
    manifests = support.committed(Store(str(tmp_path / "store")))
    assert [manifest.start_ms for manifest in manifests] == sorted(manifest.start_ms for manifest in manifests)
    assert [manifest.last_of_run for manifest in manifests] == [False, False, False, True]
    assert {manifest.run for manifest in manifests} == {0}


@pytest.mark.parametrize(("setting", "value"), [("window_seconds", 20), ("user_shards", 3)])
def test_settings_that_would_count_twice_are_refused(tmp_path: Path, setting: str, value: int) -> None:
    users = [Event(f"user-{number}", "i", 1) for number in range(20)]
    support.write_lines(tmp_path / "log/a.jsonl", [event.line() for event in users])
    bring_in(tmp_path)
    with pytest.raises(LayoutError, match=setting):
        bring_in(tmp_path, **{setting: value})


def test_another_history_length_rebuilds_the_histories(tmp_path: Path) -> None:
    support.write_lines(tmp_path / "log/a.jsonl", [event.line() for event in CLICKS])
    bring_in(tmp_path)
    support.write_lines(tmp_path / "log/a.jsonl", [Event("ann", "new", 50).line()])
    bring_in(tmp_path, history_length=6)
    store = Store(str(tmp_path / "store"))
    newest = support.committed(store)[-1]
    [row] = support.WindowLog(store).all_examples(newest).to_pylist()
    assert row["history"] == [support.hash_id(f"item-{number}") for number in range(6, 12)]


def test_snapshots_only_spare_work(tmp_path: Path) -> None:
    state = tmp_path / "store/state"
    store = Store(str(tmp_path / "store"))
    for number in range(4):
        support.write_lines(tmp_path / "log/a.jsonl", [Event("ann", f"i{number}", 20 * number).line()])
        bring_in(tmp_path)
        if number == 1:
            shutil.rmtree(state)
        if number == 2:
            [snapshot, *_] = (state / "histories").iterdir()
            snapshot.write_bytes(snapshot.read_bytes()[:50])
    support.check_histories(store, 3)


def test_a_missing_log_is_an_error_for_a_bounded_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="log"):
        bring_in(tmp_path)


class Following:
    """An ingest that follows in a thread."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.reports: list[IngestSummary] = []
        self.registry = CollectorRegistry()
        self.store, self.stop = Store(str(folder / "store")), threading.Event()
        config: PipelineConfig = support.config(folder, poll_seconds=0.02, **changes)
        arguments = {"follow": True, "report": self.reports.append, "registry": self.registry, "stop": self.stop}
        self.thread = threading.Thread(target=ingest, args=(self.store, config), kwargs=arguments)

    def __enter__(self) -> "Following":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()

    def wait_for(self, events: int) -> None:
        until = time.monotonic() + 60
        while sum(report.valid for report in self.reports) < events:
            assert time.monotonic() < until, self.reports
            time.sleep(0.01)


def test_following_commits_closed_windows_at_once_and_open_ones_when_idle(tmp_path: Path) -> None:
    path = tmp_path / "log/a.jsonl"
    with Following(tmp_path, idle_seconds=3) as following:
        support.write_lines(path, [Event("u", "i", 1).line(), Event("u", "i", 2).line(), Event("u", "i", 28).line()])
        following.wait_for(2)
        assert len(support.committed(following.store)) == 1
        [span] = support.committed(following.store)[0].sources.values()
        assert span.resume < span.stop
        following.wait_for(3)
        support.write_lines(path, [Event("u", "late", 3).line(), Event("u", "new", 45).line()])
        following.wait_for(5)
        value = following.registry.get_sample_value
        assert value("weir_pipeline_events_total", {"label": "positive"}) == 5
        assert value("weir_pipeline_late_events_total") == 1
        assert value("weir_pipeline_window_commit_seconds_count") == 4
        newest = support.committed(following.store)[-1].max_event_ms / 1000
        assert value("weir_pipeline_watermark_timestamp_seconds") == newest
    panes = [(manifest.start_ms, manifest.pane) for manifest in support.committed(following.store)]
    assert len(panes) == len(set(panes)) == 4


def test_following_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    line = Event("u", "i", 1).line()
    with Following(tmp_path, idle_seconds=0.1) as following:
        support.write_lines(tmp_path / "log/a.jsonl", [line, line[:30]])
        following.wait_for(1)
        support.write_lines(tmp_path / "log/a.jsonl", [line[30:]])
        following.wait_for(2)
    assert letters(tmp_path) == {}


def test_a_large_log_is_read_in_several_runs(tmp_path: Path) -> None:
    events = [Event(f"u{number % 3}", f"i{number}", number) for number in range(60)]
    for number in range(6):
        part = events[10 * number : 10 * number + 10]
        support.write_lines(tmp_path / f"log/{number}.jsonl", [event.line() for event in part])
    summary = bring_in(tmp_path, run_bytes=2000)
    assert (summary.valid, summary.windows) == (60, 6)
    assert summary.runs >= 3
    store = Store(str(tmp_path / "store"))
    assert support.stored_events(store) == support.expected_events(events)
    support.check_histories(store, 3)
