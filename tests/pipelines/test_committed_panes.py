import pickle
from pathlib import Path

import pytest

from tests.contracts.panes import a_pane
from weir.contracts import LogState, Store, WindowLog
from weir.contracts.commits import Cursor
from weir.contracts.log_state import Panes
from weir.pipelines.committed_panes import panes_before, remember_panes
from weir.pipelines.positions import Base

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
