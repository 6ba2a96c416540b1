"""The driver: bad files, what a run counts, and when runs are due."""

import gzip
import logging
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.pipelines import support
from tests.pipelines.support import ORIGIN, Event
from tests.readers.files import write_delimited
from weir.contracts import CommitLog, LogState, Store, WindowLog
from weir.pipelines.batch.ingest import IngestSummary, _Driver, ingest
from weir.pipelines.config import PipelineConfig
from weir.pipelines.layout import LayoutError
from weir.pipelines.metrics import PipelineMetrics
from weir.pipelines.sources.log import UselessLogError
from weir.pipelines.sources.plan import RunPlan
from weir.readers import PIECE_COST, LogColumns, discover

CLICKS = [Event("ann", f"item-{number}", number) for number in range(12)]


def bring_in(folder: Path, **changes: Any) -> IngestSummary:
    config = support.config(folder, **changes)
    return ingest(Store(str(folder / "store")), config, registry=CollectorRegistry())


def letters(folder: Path) -> dict[str, list[tuple[int, str]]]:
    """The dead letters of all commits: partition -> (position, reason)."""
    found: dict[str, list[tuple[int, str]]] = {}
    for letter in support.dead_letters(Store(str(folder / "store"))):
        found.setdefault(letter.partition, []).append((letter.position, letter.reason))
    return found


def test_every_kind_of_bad_file_is_named_and_spares_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "log"
    support.write_lines(log / "good.jsonl", [event.line() for event in CLICKS])
    support.write_parquet(log / "whole.parquet", CLICKS)
    (log / "cut.parquet").write_bytes((log / "whole.parquet").read_bytes()[:-30])
    (log / "whole.parquet").unlink()
    lines = [Event("bob", f"item-{number}", number).line() for number in range(40)]
    members = [gzip.compress("".join(lines[start : start + 20]).encode()) for start in (0, 20)]
    (log / "cut.jsonl.gz").write_bytes(b"".join(members)[:-8])
    for name in ("empty.jsonl", "empty.jsonl.gz", "empty.parquet"):
        (log / name).touch()
    with caplog.at_level(logging.ERROR, "pipelines"):
        summary = bring_in(tmp_path)
    assert (summary.valid, summary.dead) == (12 + 20, 2)
    assert letters(tmp_path) == {
        "cut.jsonl.gz": [(20, "truncated_gzip")],
        "cut.parquet": [(0, "unreadable_file")],
    }
    assert len(caplog.messages) == 2
    for name in ("cut.jsonl.gz", "cut.parquet"):
        assert sum(name in message for message in caplog.messages) == 1


@pytest.mark.parametrize("follow", [False, True])
def test_a_log_without_a_valid_row_is_refused_before_anything_is_written(tmp_path: Path, *, follow: bool) -> None:
    line = '{"customer": "u", "sku": "i", "when": 1700000000, "event_type": "click"}\n'
    support.write_lines(tmp_path / "log" / "a.jsonl", [line] * 1000)
    store = Store(str(tmp_path / "store"))
    config = support.config(tmp_path)
    with pytest.raises(
        UselessLogError, match=r"missing_field in 1,000 of 1,000 rows.*the line has customer, sku, when, event_type"
    ):
        ingest(store, config, follow=follow, registry=CollectorRegistry())
    assert not store.exists("dead-letters")
    assert not store.glob("commits/*")
    # Under settings that fit the same store takes every row.
    columns = LogColumns(user_id="customer", item_id="sku", timestamp="when")
    config = config.model_copy(update={"columns": columns})
    assert ingest(store, config, registry=CollectorRegistry()).valid == 1000


def test_a_folder_without_a_log_is_an_error_of_a_bounded_run(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "export.xlsx").write_bytes(b"x")
    with pytest.raises(UselessLogError, match=r"holds no file that can be read: a log has files of \.parquet"):
        ingest(Store(str(tmp_path / "store")), support.config(tmp_path), registry=CollectorRegistry())


def test_a_broken_file_is_counted_once_and_read_when_it_is_repaired(tmp_path: Path) -> None:
    path = tmp_path / "log/a.parquet"
    support.write_parquet(path, CLICKS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(UselessLogError, match="unreadable_file"):
        bring_in(tmp_path)
    assert letters(tmp_path) == {}
    for number in range(3):
        support.write_lines(tmp_path / f"log/{number}.jsonl", [Event("bob", f"i{number}", number).line()])
        summary = bring_in(tmp_path)
        assert (summary.valid, summary.dead) == (1, number == 0)
        assert letters(tmp_path)["a.parquet"] == [(0, "unreadable_file")]
    path.write_bytes(whole)
    assert (bring_in(tmp_path).valid, len(letters(tmp_path)["a.parquet"])) == (12, 1)


def test_a_gzip_file_that_was_cut_is_read_to_its_end_when_it_is_whole(tmp_path: Path) -> None:
    path, store = tmp_path / "log/a.jsonl.gz", Store(str(tmp_path / "store"))
    lines = [event.line() for event in CLICKS]
    whole = b"".join(gzip.compress("".join(some).encode()) for some in (lines[:4], lines[4:]))
    path.parent.mkdir()
    path.write_bytes(whole[:-20])
    assert (bring_in(tmp_path).valid, letters(tmp_path)) == (4, {path.name: [(4, "truncated_gzip")]})
    path.write_bytes(whole)
    assert bring_in(tmp_path).valid == len(CLICKS) - 4
    assert support.stored_events(store) == support.expected_events(CLICKS)


@pytest.mark.parametrize("shorter", [True, False])
def test_a_file_that_is_rewritten_is_read_as_a_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, shorter: bool
) -> None:
    path = tmp_path / "log/a.jsonl"
    support.write_lines(path, [event.line() for event in CLICKS[:6]])
    assert bring_in(tmp_path).valid == 6
    again = CLICKS[6:8] if shorter else CLICKS[6:] + CLICKS[6:]
    registry = CollectorRegistry()
    support.write_lines(path, [event.line() for event in again], "w")
    ingest(Store(str(tmp_path / "store")), support.config(tmp_path), registry=registry)
    assert registry.get_sample_value("weir_pipeline_rewritten_files_total") == 1
    assert "was rewritten under its name" in caplog.text
    store = Store(str(tmp_path / "store"))
    assert support.stored_events(store) == support.expected_events(CLICKS[:6] + again)
    assert set(LogState.open(store).sources) == {"a.jsonl", "a.jsonl@2"}
    assert bring_in(tmp_path).read == 0
    support.write_lines(path, [Event("cyd", "more", 3).line()])
    assert bring_in(tmp_path).valid == 1


def test_an_unfinished_last_line_is_counted_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log/a.jsonl"
    [first, second, third] = [event.line() for event in CLICKS[:3]]
    support.write_lines(path, [first, second[:20]])
    assert bring_in(tmp_path).valid == 1
    half = {"a.jsonl": [(len(first), "malformed_json")]}
    assert letters(tmp_path) == half
    assert bring_in(tmp_path).read == 0
    support.write_lines(path, [second[20:], third.rstrip("\n")])
    assert bring_in(tmp_path).valid == 2
    support.write_lines(path, ["\n", CLICKS[3].line()])
    assert bring_in(tmp_path).valid == 1
    assert letters(tmp_path) == half
    assert support.stored_events(Store(str(tmp_path / "store"))) == support.expected_events(CLICKS[:4])


def test_a_row_with_open_quotes_is_counted_when_they_close(tmp_path: Path) -> None:
    path = tmp_path / "log/a.csv"
    rows = [f"{event.user},{event.item},{ORIGIN + event.second},click" for event in CLICKS[:3]]
    head = f"user_id,item_id,timestamp,event_type,comment\n{rows[0]},fine\n"
    support.write_lines(path, [head, f'{rows[1]},"two\nmallory,evil,{ORIGIN},click,\n'])
    assert bring_in(tmp_path).valid == 1
    open_row = {"a.csv": [(len(head), "malformed_row")]}
    assert letters(tmp_path) == open_row
    assert bring_in(tmp_path).read == 0
    support.write_lines(path, [f'lines"\n{rows[2]},""\n'])
    assert bring_in(tmp_path).valid == 2
    assert letters(tmp_path) == open_row
    assert support.stored_events(Store(str(tmp_path / "store"))) == support.expected_events(CLICKS[:3])


def test_dead_letters_are_summed_over_runs_and_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "log/a.jsonl"
    for number in range(3):
        support.write_lines(path, ["bad\n" * 30, CLICKS[number].line()])
        assert bring_in(tmp_path).dead == 30
        state = LogState.open(Store(str(tmp_path / "store")))
        [span] = state.sources.values()
        assert (span.dead, span.stop, span.size) == (30 * (number + 1), path.stat().st_size, path.stat().st_size)
        assert state.dead == span.dead


def test_what_is_dead_beside_an_open_window_is_counted_once_however_often_it_is_read(tmp_path: Path) -> None:
    """Each process starts at the open window's first row, and so reads the dead ones behind it again."""
    path = tmp_path / "log/a.jsonl"
    support.write_lines(path, [CLICKS[0].line(), "bad\n" * 10])
    for number in range(12):
        with Following(tmp_path, idle_seconds=60) as following:
            support.write_lines(path, [Event("u", f"i{number}", 1).line()])
            following.wait_for_runs(1)
    assert bring_in(tmp_path).valid == 13
    assert len(letters(tmp_path)["a.jsonl"]) == 10
    assert LogState.open(Store(str(tmp_path / "store"))).dead == 10


def test_dead_rows_wait_for_a_valid_one(tmp_path: Path) -> None:
    support.write_lines(tmp_path / "log/a.jsonl", ["bad\n" * 7])
    with Following(tmp_path, idle_seconds=60) as following:
        until = time.monotonic() + 1
        while time.monotonic() < until:
            assert following.reports == []
        support.write_lines(tmp_path / "log/b.jsonl", [Event("u", "i", 1).line()])
        following.wait_for_runs(1)
        assert following.reports[0].dead == 7
    assert len(letters(tmp_path)["a.jsonl"]) == 7


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("rows", [1, 60])
def test_a_log_whose_files_have_an_old_time_is_refused_and_read_when_that_is_mended(
    tmp_path: Path, rows: int, *, follow: bool
) -> None:
    path, store = tmp_path / "log/a.jsonl", Store(str(tmp_path / "store"))
    support.write_lines(path, [Event("u", f"i{second}", second).line() for second in range(rows)])
    os.utime(path, (0, 0))
    config = support.config(tmp_path, poll_seconds=0.02, idle_seconds=0.2)
    with pytest.raises(UselessLogError, match=r"ahead_of_arrival.*pipeline\.clock_tolerance_minutes"):
        ingest(store, config, follow=follow, registry=CollectorRegistry())
    assert not store.exists("dead-letters")
    assert not store.glob("commits/*")
    os.utime(path)
    assert ingest(store, config, registry=CollectorRegistry()).valid == rows


def test_rows_that_are_refused_by_the_time_of_their_file_are_told_with_their_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log/a.jsonl"
    support.write_lines(path, [Event("u", f"i{hour}", 3600 * hour).line() for hour in range(10)])
    os.utime(path, (support.ORIGIN + 3600 * 7, support.ORIGIN + 3600 * 7))
    with caplog.at_level("WARNING"):
        summary = bring_in(tmp_path)
    assert (summary.valid, summary.dead) == (8, 2)
    [told] = [record.getMessage() for record in caplog.records if "ahead_of_arrival" in record.getMessage()]
    assert told.startswith("2 of 10 rows")
    assert "pipeline.clock_tolerance_minutes" in told


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


def test_the_windows_of_a_run_are_one_commit_in_order(tmp_path: Path) -> None:
    support.write_lines(tmp_path / "log/a.jsonl", [Event("u", "i", second).line() for second in (35, 2, 21, 11)])
    bring_in(tmp_path)
    store = Store(str(tmp_path / "store"))
    manifests = support.committed(store)
    assert [manifest.start_ms for manifest in manifests] == sorted(manifest.start_ms for manifest in manifests)
    assert CommitLog(store).get(0).panes == tuple(manifests)
    assert not store.glob("state/runs/*/started.json")


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_an_event_id_counts_once_for_each_user_whatever_the_number_of_shards(tmp_path: Path, shards: int) -> None:
    events = [Event(f"user-{n % 10}", f"item-{n}", n % 9, event_id="same") for n in range(40)]
    support.write_lines(tmp_path / "log/a.jsonl", [event.line() for event in events[:30]])
    assert bring_in(tmp_path, user_shards=shards).valid == 10
    support.write_lines(tmp_path / "log/a.jsonl", [event.line() for event in events[30:]])
    assert bring_in(tmp_path, user_shards=shards).valid == 0


SAME_KEY = ("9709d8e0b296ab5b", "6cf4ccb6499c18ce")


@pytest.mark.parametrize("together", [True, False])
def test_an_item_that_is_made_to_share_a_key_is_dead(tmp_path: Path, *, together: bool) -> None:
    owner, crafted = SAME_KEY
    assert support.hash_id(owner) == support.hash_id(crafted)
    path = tmp_path / "log/a.jsonl"
    lines = [[Event("u", item, second).line() for second in (1, 2)] for item in (owner, crafted)]
    support.write_lines(path, lines[0] + (lines[1] if together else []))
    first = bring_in(tmp_path)
    if not together:
        support.write_lines(path, lines[1])
        assert (first.valid, first.dead) == (2, 0)
        first = bring_in(tmp_path)
        assert (first.valid, first.dead) == (0, 2)
    assert [reason for _, reason in letters(tmp_path)["a.jsonl"]] == ["key_collision"] * 2
    store = Store(str(tmp_path / "store"))
    ids = {
        row["item_id"] for manifest in support.committed(store) for row in WindowLog(store).items(manifest).to_pylist()
    }
    assert len(ids) == 1
    assert together or ids == {owner}
    assert LogState.open(store).counts.events == 2


def test_runs_leave_nothing_behind_but_rows_that_wait(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    with Following(tmp_path, idle_seconds=60) as following:
        for number in range(6):
            support.write_lines(tmp_path / "log/a.jsonl", [Event("u", f"i{number}", 10 * number + 1).line()])
            following.wait_for_runs(number + 1)
            kept = {name.split("/")[2] for name in store.glob("state/runs/*/*.arrow")}
            assert {name.split("/")[2] for name in store.glob("state/runs/*/*")} == kept
            assert len(kept) <= 2


class Racing(_Driver):
    """Another pipeline, on the same store, makes the commit that this one is about to make."""

    rivals = 2

    def _run(self, plan: RunPlan) -> bool:
        if self.rivals:
            self.rivals -= 1
            path = Path(self.config.log) / f"{self.rivals}.jsonl"
            support.write_lines(path, [CLICKS[self.rivals].line()])
            config = self.config.model_copy(update={"log": str(path)})
            rival = _Driver(self.store, config, PipelineMetrics(CollectorRegistry()), None, threading.Event())
            rival.catch_up(discover(config.log), flush=True, only_whole_lines=True)
        return super()._run(plan)


def test_a_bounded_run_that_another_is_ahead_of_reads_on_until_all_is_committed(tmp_path: Path) -> None:
    support.write_lines(tmp_path / "log/a.jsonl", [event.line() for event in CLICKS[5:]])
    store, config = Store(str(tmp_path / "store")), support.config(tmp_path)
    slow = Racing(store, config, PipelineMetrics(CollectorRegistry()), None, threading.Event())
    slow.catch_up(discover(config.log), flush=True, only_whole_lines=True)
    assert (slow.rivals, CommitLog(store).newest()) == (0, 2)
    assert support.stored_events(store) == support.expected_events([*CLICKS[:2], *CLICKS[5:]])
    assert all(span.is_done for span in LogState.open(store).sources.values())


def test_an_item_whose_rows_are_in_hand_owns_its_key(tmp_path: Path) -> None:
    owner, crafted = SAME_KEY
    path = tmp_path / "log/a.jsonl"
    with Following(tmp_path, idle_seconds=60) as following:
        support.write_lines(path, [Event("u", owner, 1).line()])
        following.wait_for_runs(1)
        support.write_lines(path, [Event("u", crafted, 2).line(), Event("u", "other", 40).line()])
        following.wait_for(1)
    assert [reason for _, reason in letters(tmp_path)["a.jsonl"]] == ["key_collision"]
    store = Store(str(tmp_path / "store"))
    [first] = support.committed(store)
    assert WindowLog(store).items(first)["item_id"].to_pylist() == [owner]


def test_with_a_secret_nobody_can_aim_at_a_key(tmp_path: Path) -> None:
    support.write_lines(tmp_path / "log/a.jsonl", [Event("u", item, 1).line() for item in SAME_KEY])
    assert bring_in(tmp_path, secret_keys=True).valid == 2
    with pytest.raises(LayoutError, match=r"secret_keys is false, but .* was written with true"):
        bring_in(tmp_path, secret_keys=False)


def test_another_history_length_rebuilds_the_histories(tmp_path: Path) -> None:
    support.write_lines(tmp_path / "log/a.jsonl", [event.line() for event in CLICKS])
    bring_in(tmp_path)
    support.write_lines(tmp_path / "log/a.jsonl", [Event("ann", "new", 50).line()])
    support.change_settings(Store(str(tmp_path / "store")), support.config(tmp_path, history_length=6))
    bring_in(tmp_path, history_length=6)
    store = Store(str(tmp_path / "store"))
    newest = support.committed(store)[-1]
    [row] = support.WindowLog(store).all_examples(newest).to_pylist()
    assert row["history"] == [support.hash_id(f"item-{number}") for number in range(6, 12)]


def test_what_is_lost_is_made_again_from_the_windows(tmp_path: Path) -> None:
    state = tmp_path / "store/state"
    store = Store(str(tmp_path / "store"))
    for number in range(4):
        support.write_lines(tmp_path / "log/a.jsonl", [Event("ann", f"i{number}", 20 * number).line()])
        bring_in(tmp_path)
        if number == 1:
            shutil.rmtree(state)
        if number == 2:
            [file, *_] = (tmp_path / "store/histories").glob("*/*")
            file.write_bytes(file.read_bytes()[:50])
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

    def wait_for_runs(self, runs: int) -> None:
        until = time.monotonic() + 60
        while len(self.reports) < runs:
            assert time.monotonic() < until, self.reports
            time.sleep(0.01)

    def wait_for(self, events: int) -> None:
        until = time.monotonic() + 60
        while sum(report.valid for report in self.reports) < events:
            assert time.monotonic() < until, self.reports
            time.sleep(0.01)


def test_following_says_within_seconds_what_the_first_commit_waits_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    support.write_lines(tmp_path / "log" / "0.jsonl", [event.line() for event in CLICKS[:5]])
    with caplog.at_level(logging.INFO, "weir.pipelines"), Following(tmp_path, idle_seconds=60) as following:
        deadline = time.monotonic() + 20
        while not (told := [one.getMessage() for one in caplog.records if "watermark" in one.getMessage()]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not [one for one in following.reports if one.panes]
    assert "lateness" in told[0]


def test_following_commits_closed_windows_at_once_and_open_ones_when_idle(tmp_path: Path) -> None:
    path = tmp_path / "log/a.jsonl"
    with Following(tmp_path, idle_seconds=3) as following:
        support.write_lines(path, [Event("u", "i", 1).line(), Event("u", "i", 2).line(), Event("u", "i", 28).line()])
        following.wait_for(2)
        assert len(support.committed(following.store)) == 1
        [span] = LogState.open(following.store).sources.values()
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


def test_following_waits_for_the_end_of_quotes(tmp_path: Path) -> None:
    path = tmp_path / "log/A.CSV"
    with Following(tmp_path, idle_seconds=0.1) as following:
        support.write_lines(path, ["user_id,item_id,timestamp,event_type,comment\n", f"u,i,{ORIGIN},click,\n"])
        support.write_lines(path, [f'u,j,{ORIGIN},click,"one\n', f"mallory,evil,{ORIGIN},click,\n"])
        following.wait_for(1)
        support.write_lines(path, ['"\n'])
        following.wait_for(2)
    assert letters(tmp_path) == {}
    assert support.stored_events(following.store) == support.expected_events([Event("u", "i", 0), Event("u", "j", 0)])


def test_a_large_log_is_read_in_several_runs(tmp_path: Path) -> None:
    events = [Event(f"u{number % 3}", f"i{number}", number) for number in range(60)]
    for number in range(6):
        part = events[10 * number : 10 * number + 10]
        support.write_lines(tmp_path / f"log/{number}.jsonl", [event.line() for event in part])
    summary = bring_in(tmp_path, run_bytes=20_000)
    assert (summary.valid, summary.windows) == (60, 6)
    assert summary.runs >= 3
    store = Store(str(tmp_path / "store"))
    assert support.stored_events(store) == support.expected_events(events)
    support.check_histories(store, 3)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("name", ["a.jsonl", "a.tsv.gz", "a.parquet"])
def test_a_file_that_is_read_in_several_runs_counts_every_row_once_over_a_restart(tmp_path: Path, name: str) -> None:
    events = [Event("ann", "" if number % 5 == 1 else f"item-{number}", number) for number in range(40)]
    path = tmp_path / "log" / name
    if name == "a.jsonl":
        support.write_lines(path, [event.line() for event in events])
    else:
        (support.write_parquet if name == "a.parquet" else write_delimited)(path, events)
    limit = 4 * PIECE_COST if name == "a.parquet" else 6000
    config, store, runs = support.config(tmp_path, run_bytes=limit), Store(str(tmp_path / "store")), [0]

    def kill(_: IngestSummary) -> None:
        runs[0] += 1
        if runs[0] == 2:
            raise KilledError

    with pytest.raises(KilledError):
        ingest(store, config, registry=CollectorRegistry(), report=kill)
    [span] = LogState.open(store).sources.values()
    assert (span.stop > 0, span.size) == (True, path.stat().st_size - 1)
    ingest(store, config, registry=CollectorRegistry())
    assert support.stored_events(store) == support.expected_events([event for event in events if event.item])
    assert len(support.dead_positions(store, name)) == len({*support.dead_positions(store, name)}) == 8
    [span] = LogState.open(store).sources.values()
    assert (span.resume, span.size) == (span.stop, path.stat().st_size)
    assert ingest(store, config, registry=CollectorRegistry()).runs == 0


def test_a_window_that_fills_the_memory_is_committed_in_parts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its rows would else wait for its end, and be read at once."""
    events = [Event(f"u{number % 3}", f"i{number}", number) for number in range(30)]
    support.write_lines(tmp_path / "log/a.jsonl", [event.line() for event in events])
    assert bring_in(tmp_path, window_seconds=1000, run_bytes=6000).panes > 1
    assert caplog.text.count("rows of open windows fill most of pipeline.run_bytes") == 1
    store = Store(str(tmp_path / "store"))
    assert support.stored_events(store) == support.expected_events(events, 1000)
    support.check_histories(store, 3)


def test_a_damaged_member_ends_a_file_that_is_read_in_several_runs(tmp_path: Path) -> None:
    """Its rows are measured, but none of them counts as read."""
    lines = [Event("bob", f"item-{number}", number).line() for number in range(40)]
    whole = b"".join(gzip.compress("".join(lines[start : start + 20]).encode()) for start in (0, 20))
    path = tmp_path / "log/a.jsonl.gz"
    path.parent.mkdir()
    path.write_bytes(whole[:-8] + bytes(8))
    assert bring_in(tmp_path, run_bytes=6000).valid == 20
    assert letters(tmp_path) == {"a.jsonl.gz": [(20, "truncated_gzip")]}
    [span] = LogState.open(Store(str(tmp_path / "store"))).sources.values()
    assert (span.stop, span.resume) == (20, 20)
