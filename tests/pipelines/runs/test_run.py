import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contracts.panes import a_pane
from weir.contracts import Inherited, LetterFile, LogState, SourceSpan, Store, WindowLog
from weir.contracts.commits.commit_log import Cursor
from weir.contracts.commits.log_state import Panes
from weir.pipelines.runs.progress import LettersWritten, PartitionProgress, PendingRows, Progress
from weir.pipelines.runs.run import END_OF_TIME, Base, Run, panes_before, remember_panes
from weir.readers import Format, Partition

NONE = Panes(count=0, commit=-1)


def cursors(store: Store, windows: list[int]) -> list[Cursor]:
    """Commit a pane of each window; the places before and behind each commit."""
    found = [Cursor()]
    for start in windows:
        WindowLog(store).commit(a_pane(0, start_ms=start, end_ms=start + 10))
        found.append(LogState.open(store).cursor)
    return found


def test_panes_are_those_before_the_cursor_whatever_has_been_asked_before(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    at = cursors(store, [0, 20, 0])
    for cursor, first, second in (
        (at[3], Panes(count=2, commit=2), Panes(count=1, commit=1)),
        (at[1], Panes(count=1, commit=0), NONE),
        (at[2], Panes(count=1, commit=0), Panes(count=1, commit=1)),
        (at[0], NONE, NONE),
        (at[3], Panes(count=2, commit=2), Panes(count=1, commit=1)),
    ):
        assert [panes_before(store, cursor, start) for start in (0, 20, 10)] == [first, second, NONE]


def test_a_later_run_reads_only_the_commits_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path))
    at = cursors(store, [0, 20, 40])
    panes_before(store, at[2], 0)
    read = list[str]()
    really = Store.read
    monkeypatch.setattr(Store, "read", lambda self, name: read.append(name) or really(self, name))
    assert panes_before(store, at[3], 40) == Panes(count=1, commit=2)
    assert [name for name in read if name.startswith("commits/0")] == ["commits/0000000002.json"]
    read.clear()
    assert panes_before(store, at[3], 0) == Panes(count=1, commit=0)
    assert read == []


def test_what_a_run_carries_does_not_grow_with_the_store(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    sizes = []
    for windows in ([0], range(10, 1000, 10)):
        cursors(store, list(windows))
        sizes.append(len(pickle.dumps(Base.of(LogState.open(store), ()))))
    assert sizes[1] <= sizes[0] + 8


def test_panes_that_a_process_has_opened_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path))
    at = cursors(store, [0, 20])
    state = LogState.open(store)
    remember_panes(store, state)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "read", lambda _self, name: pytest.fail(f"{name} is read"))
        assert panes_before(store, at[2], 20) == Panes(count=1, commit=1)
    cursors(store, [20])
    assert panes_before(store, LogState.open(store).cursor, 20) == Panes(count=2, commit=2)
    assert state.panes_of(20) == Panes(count=1, commit=1)


def span(stop: int, resume: int, **changes: Any) -> SourceSpan:
    return SourceSpan(start=0, stop=stop, resume=resume, size=stop, **changes)


def a_run(**changes: Any) -> Run:
    fields: dict[str, Any] = {
        "id": "one",
        "base": Base(sources={"a": span(300, 100, dead=2)}, max_event_ms=50),
        "partitions": {"a": Partition("a", "a", Format.JSON_LINES, 1000)},
        "window_ms": 10,
        "lateness_ms": 5,
        "flush": False,
    }
    return Run(**fields | changes)


def letters(name: str, rows: int, last: int) -> LettersWritten:
    return LettersWritten(LetterFile(name=name, size=1, checksum="sum", rows=rows, partition="a", reasons={}), last)


def test_a_row_is_accounted_for_below_resume_and_below_what_its_window_counted() -> None:
    base = Base(sources={"a": span(300, 100)}, counted={"a": {0: 300, 10: 200}})
    windows, positions = np.array([0, 0, 10, 10, 20, 20]), np.array([299, 300, 199, 200, 99, 100])
    assert base.is_counted("a", windows, positions).tolist() == [True, False, True, False, True, False]
    assert base.is_counted("b", windows, positions).tolist() == [False] * 6


def test_a_row_that_came_from_another_store_is_known_by_the_window_it_had_there() -> None:
    inherited = (Inherited(window_ms=7, counted={0: 300, 7: 200}), Inherited(window_ms=100, counted={0: 101}))
    base = Base(sources={"a": span(300, 100, inherited=inherited)})
    times, positions = np.array([6, 6, 7, 13, 14, 14]), np.array([299, 300, 199, 200, 100, 101])
    assert base.is_inherited("a", times, positions).tolist() == [True, False, True, False, True, False]
    assert base.is_inherited("b", times, positions).tolist() == [False] * 6
    progress = Progress(70, {"a": PartitionProgress(900, 0, {70: 200})})
    assert a_run(base=base).spans(progress, {})["a"].inherited == inherited[:1]
    assert a_run(base=base, flush=True).spans(progress, {})["a"].inherited == ()


def test_spans_resume_at_the_lowest_row_of_an_open_window() -> None:
    progress = Progress(70, {"a": PartitionProgress(900, 3, {40: 150, 60: 400, 70: 300})})
    assert a_run().watermark_ms(progress) == 65
    found = {"a": [letters("new", 3, 350)]}
    assert a_run().spans(progress, found) == {
        "a": SourceSpan(
            start=100,
            stop=900,
            resume=300,
            size=1000,
            dead=5,
            letters={"new": 350},
            letter_checksums={"new": "sum"},
        )
    }
    assert a_run(flush=True).spans(progress, found)["a"].resume == 900
    assert a_run(flush=True).spans(progress, found)["a"].letters == {}
    assert a_run(flush=True).spans(progress, found)["a"].letter_checksums == {}
    assert a_run(newest_ms=200).spans(progress, {})["a"].resume == 900


def test_rows_in_hand_hold_the_position_of_partitions_that_are_not_read() -> None:
    rows = (PendingRows("b", 60, "rows", 30), PendingRows("b", 40, "rows", 20))
    run = a_run(pending={"b": span(80, 20)}, open_rows=rows)
    found = run.spans(Progress(60, {}), {})
    assert found == {"b": SourceSpan(start=0, stop=80, resume=30, size=80)}


def test_stop_never_goes_back() -> None:
    assert a_run().spans(Progress(-1, {"a": PartitionProgress(200)}), {})["a"].stop == 300


def test_a_reading_that_is_cut_short_claims_nothing_behind_its_end() -> None:
    found = a_run().spans(Progress(900, {"a": PartitionProgress(200)}, wanted={"a": 1000}), {})["a"]
    assert (found.stop, found.resume) == (200, 200)
    found = a_run().spans(Progress(900, {"a": PartitionProgress(100)}, wanted={"a": 1000}), {})["a"]
    assert (found.stop, found.resume) == (100, 100)


def test_a_letter_about_a_whole_file_ends_when_the_file_is_read() -> None:
    run = a_run(base=Base(sources={"a": span(0, 0, dead=1, letters={"file": END_OF_TIME})}))
    assert run.spans(Progress(), {"a": [letters("again", 1, END_OF_TIME)]})["a"].letters.keys() == {"file", "again"}
    read = run.spans(Progress(5, {"a": PartitionProgress(10)}), {})["a"]
    assert (read.letters, read.dead) == ({}, 1)
