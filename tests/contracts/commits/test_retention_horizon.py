""""""

import pickle
from pathlib import Path

import pytest

from tests.contracts.panes import a_pane, retire_before
from weir.contracts import CommitLog, CorruptArtefactError, Horizon, LogState, RetiredError, Store, WindowLog
from weir.contracts.commits.commit_log import Cursor
from weir.contracts.commits.retention_horizon import MonitorPlace, snapshots, stored_horizon


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Six commits of one pane each, of which three have retired."""
    store = Store(str(tmp_path))
    for number in range(6):
        WindowLog(store).commit(a_pane(number))
    retire_before(store, 3, 30)
    return store


def test_the_newest_snapshot_that_can_be_read_holds_it(store: Store) -> None:
    found = stored_horizon(store)
    assert found is not None
    assert (found.ms, found.number, found.sequence) == (30, 3, 3)
    WindowLog(store).commit(a_pane(6))
    state = LogState.open(store)
    state.horizon = Horizon(ms=40, number=4, sequence=4, checksum="x")
    state.retirement = state.number
    assert state.save(CommitLog(store))
    assert snapshots(store) == [7, 6]
    assert stored_horizon(store) == state.horizon
    store.write("commits/snapshot-0000000007.json", b"damaged")
    assert stored_horizon(store) == found


def test_without_snapshots_nothing_has_retired(tmp_path: Path) -> None:
    assert stored_horizon(Store(str(tmp_path))) is None


def test_a_lost_commit_is_told_from_a_retired_one(store: Store) -> None:
    log = CommitLog(store)
    with pytest.raises(RetiredError, match="commit 2 has retired: the log starts at commit 3, pane 3") as caught:
        log.get(2)
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - its own bytes
    assert str(copied) == str(caught.value)
    with pytest.raises(RetiredError, match="commit 0 has retired"):
        log.at(0)
    with pytest.raises(RetiredError, match="pane 1 has retired"):
        log.find(1)
    store.remove(CommitLog.name(4))
    with pytest.raises(CorruptArtefactError, match=r"0000000004\.json: is missing"):
        list(WindowLog(store).follow())


def test_the_log_starts_at_the_first_commit_that_is_left(store: Store) -> None:
    log = CommitLog(store)
    assert log.first() == log.at(3)
    assert log.find(3).number == 3
    assert [pane.sequence for pane in WindowLog(store)] == [3, 4, 5]
    assert log.first().checksum == log.get(3).predecessor
    step = log.next(log.first())
    assert step is not None
    assert step[0].number == 3
    assert log.newest() == 6
    store.remove("commits/HEAD")
    assert (log.newest(), log.first().number) == (6, 3)
    store.remove(CommitLog.name(3))
    with pytest.raises(CorruptArtefactError, match=r"0000000003\.json: is missing"):
        log.newest()


def test_what_lies_before_it_leaves_the_state(store: Store) -> None:
    state = LogState.open(store)
    assert state.starts == [30, 40, 50]
    assert state.panes_of(20) is None
    assert state.counts.events == 12
    assert (state.cursor.sequence, state.retirement) == (6, 6)
    head = CommitLog(store).head()
    assert head is not None
    # A version that knows no horizon finds no snapshot, and stops at the commits that are gone.
    assert (head.snapshot, head.base, head.newest_snapshot) == (None, 6, 6)
    assert WindowLog(store).commit(a_pane(6)).number == 7
    assert LogState.open(store).starts == [30, 40, 50, 60]


def test_a_state_before_the_newest_snapshot_comes_from_an_older_one(store: Store) -> None:
    for number in range(7, 12):
        WindowLog(store).commit(a_pane(number))
    newest = LogState.open(store)
    newest.snapshot, newest.retirement = None, newest.number
    assert newest.save(CommitLog(store))
    assert LogState.open(store, 9).cursor == CommitLog(store).at(9)
    with pytest.raises(RetiredError):
        LogState.open(store, 5)


def test_a_reader_that_does_not_know_retention_stops(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.contracts.commits.commit_log.KNOWN", frozenset())
    with pytest.raises(CorruptArtefactError, match="needs retention, unknown to this version: upgrade weir"):
        CommitLog(store).next(Cursor(6, 6))


def test_a_place_is_what_was_stored_last(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert MonitorPlace.read(store) is None
    for place in (MonitorPlace(measured=3), MonitorPlace(measured=4, reported=2, counted=1)):
        place.write(store)
        assert MonitorPlace.read(store) == place
    store.write("monitor/PLACE.json", b"{}")
    with pytest.raises(CorruptArtefactError, match=r"monitor/PLACE\.json"):
        MonitorPlace.read(store)
