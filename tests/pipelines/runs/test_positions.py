""""""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.runners.worker.statecache import get_deep_size
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.panes import a_pane
from weir.contracts import Inherited, LetterFile, LogState, SourceSpan, Store, WindowLog
from weir.contracts.base import columns
from weir.contracts.commits.commit_log import Cursor
from weir.contracts.commits.log_state import Panes
from weir.pipelines.runs.positions import (
    END_OF_TIME,
    Base,
    LettersWritten,
    OpenRows,
    PartitionProgress,
    Progress,
    Run,
    claims_in_hand,
    panes_before,
    read_open_rows,
    remember_panes,
    write_open_rows,
)
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


ROWS = st.lists(
    st.tuples(
        st.integers(0, 2**62), st.text(), st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.lists(st.text())
    ),
    min_size=1,
)


def a_batch(rows: list[tuple[int, str, int | None, list[str] | None]]) -> pa.RecordBatch:
    """Rows as they are kept, with a feature that not every row has."""
    positions, items, events, genres = zip(*rows, strict=True)
    fields = {
        columns.POSITION: pa.array(positions, pa.int64()),
        columns.ITEM_ID: pa.array(items, pa.string()),
        columns.EVENT_KEY: pa.array(events, pa.int64()),
        columns.FEATURES: pa.StructArray.from_arrays([pa.array(genres, pa.list_(pa.string()))], ["genre"]),
    }
    return pa.RecordBatch.from_pydict(fields)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(tmp_path_factory.mktemp("rows")))


@given(ROWS)
@settings(deadline=None, max_examples=30)
def test_rows_come_back_as_they_were_with_their_lowest_position(
    store: Store, rows: list[tuple[int, str, int | None, list[str] | None]]
) -> None:
    batch = a_batch(rows)
    kept = write_open_rows(store, "state/runs/one", "part.jsonl", 60_000, batch, claims={1: 2, -(2**63): 2**63 - 1})
    assert claims_in_hand(store, kept) == {1: 2, -(2**63): 2**63 - 1}
    assert read_open_rows(store, kept).equals(batch)
    assert (kept.partition, kept.start_ms, kept.lowest) == ("part.jsonl", 60_000, min(row[0] for row in rows))


def test_two_files_of_one_run_and_window_are_two(store: Store) -> None:
    batches = [a_batch([(position, "item", None, None)]) for position in (5, 3)]
    kept = [write_open_rows(store, "state/runs/one", "part.jsonl", 0, batch, claims={}) for batch in batches]
    assert [read_open_rows(store, one).equals(batch) for one, batch in zip(kept, batches, strict=True)] == [True, True]
    assert [one.lowest for one in kept] == [5, 3]


def test_rows_that_are_gone_or_damaged_are_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    kept = write_open_rows(store, "state/runs/one", "part.jsonl", 0, a_batch([(1, "item", None, None)]), claims={})
    data = store.read(kept.name)
    for damaged in (b"", data[: len(data) // 2]):
        store.write(kept.name, damaged)
        with pytest.raises(pa.ArrowInvalid):
            read_open_rows(store, kept)
    store.remove(kept.name)
    with pytest.raises(FileNotFoundError):
        read_open_rows(store, kept)


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
    run = a_run(pending={"b": span(80, 20)}, open_rows=(OpenRows("b", 60, "rows", 30), OpenRows("b", 40, "rows", 20)))
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


CLAIMS = st.lists(st.tuples(st.integers(-2, 2), st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)), max_size=8)


def test_beam_takes_no_longer_to_measure_many_claims() -> None:
    """Its cache asks for the size of what it holds, object by object."""
    few, many = Progress(contested={1: 2}), Progress(contested=dict.fromkeys(range(10_000), 2))
    assert get_deep_size(few) == get_deep_size(many)


@given(st.lists(CLAIMS, max_size=5))
def test_of_several_ids_that_claim_a_key_the_lowest_check_has_it(parts: list[list[tuple[int, int]]]) -> None:
    arrays = (np.array(part, np.int64).reshape(-1, 2) for part in parts)
    found = Progress().add(Progress(claims=[claims]) for claims in arrays).settle()
    checks: dict[int, set[int]] = {}
    for key, check in (pair for part in parts for pair in part):
        checks.setdefault(key, set()).add(check)
    assert found.contested == {key: min(known) for key, known in checks.items() if len(known) > 1}
    assert not found.claims
