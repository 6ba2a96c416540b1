"""Retention by windows, for any layout of windows over commits: one run may fill a store, and panes may be late."""

import shutil
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contracts.panes import a_pane
from tests.kills import KilledError, killed_at
from tests.pipelines import aging
from weir.contracts import (
    CommitLog,
    FileEntry,
    Layout,
    LogState,
    RetiredError,
    Store,
    StoreFormat,
    WindowLog,
    WindowManifest,
    ensure_format,
)
from weir.contracts.commits.retention_horizon import WINDOWS, MonitorPlace
from weir.contracts.storage.store import checksum
from weir.contracts.verification import Finding
from weir.pipelines.maintenance.cleanup import Removal
from weir.pipelines.maintenance.retention import Retention, plan_retirement, retire

WINDOW_MS = 10_000


def a_store(folder: Path, layout: list[list[int]], *, names_previous: bool) -> Store:
    """Write a store whose commits have panes of these windows, each with a file."""
    store = Store(str(folder / "store"))
    ensure_format(store, StoreFormat(layout=Layout(window_ms=WINDOW_MS, user_shards=1, sketch={"kind": "exact"})))
    log, panes, previous, total = WindowLog(store), dict[int, int](), dict[int, int](), 0
    for number, windows in enumerate(layout):
        listed = []
        for window in windows:
            pane, start = panes.get(window, 0), window * WINDOW_MS
            made = a_pane(
                total,
                start_ms=start,
                end_ms=start + WINDOW_MS,
                max_event_ms=start + WINDOW_MS - 1,
                pane=pane,
                previous=previous.get(window, -1) if names_previous else -1,
            )
            data = f"{window} {pane}".encode()
            store.write(f"{made.folder}/rows", data)
            store.write(f"monitor/{made.name}.json", b"{}")
            listed.append(
                made.model_copy(
                    update={"files": (FileEntry(name="rows", size=len(data), checksum=checksum(data), rows=1),)}
                )
            )
            panes[window], total = pane + 1, total + 1
        previous |= dict.fromkeys(windows, number)
        log.commit(*listed, covered=total)
    MonitorPlace(measured=total - 1, counted=total - 1).write(store)
    return store


def read_from(store: Store, after: int) -> list[int]:
    """Read on after a pane as a trainer does."""
    log = WindowLog(store)
    try:
        found = log.next(after)
    except RetiredError as error:
        after = error.horizon.sequence - 1
        found = log.next(after)
    sequences = []
    while found:
        sequences += [pane.sequence for pane in found]
        found = log.next(found[-1].sequence)
    return sequences


def check(store: Store, left: list[WindowManifest], before: LogState) -> None:
    """Readers find what is left, wherever they are, and nothing is damaged."""
    wanted = [pane.sequence for pane in left]
    total = before.cursor.sequence
    for after in range(-1, total, 1 + total // 6):
        assert read_from(store, after) == [sequence for sequence in wanted if sequence > after]
    for count in (1, 3, len(wanted) or 1):
        assert [pane.sequence for pane in WindowLog(store).newest(count)] == wanted[-count:]
    for pane in left:
        assert store.read(f"{pane.folder}/rows")
    state = LogState.open(store)
    assert state.counts == before.counts
    assert state.max_event_ms == before.max_event_ms
    assert state.starts == sorted({pane.start_ms for pane in left})
    assert damaged(store) == []


def damaged(store: Store) -> list[Finding]:
    """What is wrong with a store, but for the results of the monitor, which are none here."""
    return [found for found in aging.leftovers(store) if not found.name.startswith("monitor/1970")]


def act(store: Store, age: float) -> None:
    """Let retention act twice: what retires at first is removed then."""
    for _ in range(2):
        Retention(store, age, grace_seconds=0, pause_seconds=0).step(LogState.open(store), None)


layouts = st.lists(st.lists(st.integers(0, 12), max_size=6, unique=True), min_size=1, max_size=7)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(layout=layouts, age=st.integers(10, 140), again=st.integers(10, 140), seed=st.integers(0, 999))
def test_what_retires_is_what_is_old_whatever_the_commits(
    tmp_path_factory: pytest.TempPathFactory, layout: list[list[int]], age: int, again: int, seed: int
) -> None:
    folder, random = tmp_path_factory.mktemp("layout"), Random(seed)
    store = a_store(folder, layout, names_previous=random.random() < 0.8)
    left, before = WindowLog(store).committed(), LogState.open(store)
    for seconds in (age, again):
        cutoff = (before.max_event_ms - 1000 * seconds) // WINDOW_MS * WINDOW_MS
        gone = [pane for pane in left if pane.start_ms < cutoff]
        plan = plan_retirement(store, LogState.open(store), seconds, None)
        assert (plan.windows, plan.panes) == (len({pane.start_ms for pane in gone}), len(gone))
        assert plan.size == sum(file.size for pane in gone for file in pane.files)
        left = [pane for pane in left if pane.start_ms >= cutoff]
        # Killed anywhere, what is left can be read, and the next one finishes it.
        with suppress(KilledError), killed_at(random.randrange(60)):
            act(store, seconds)
        assert set(read_from(store, -1)) >= {pane.sequence for pane in left}
        assert damaged(store) == []
        act(store, seconds)
        check(store, left, before)
        assert not any(store.exists(pane.folder) or store.exists(f"monitor/{pane.name}.json") for pane in gone)
        assert not Removal(store, LogState.open(store), 0).is_waiting
    shutil.rmtree(folder)


def test_a_store_that_one_run_filled_retires_its_old_windows(tmp_path: Path) -> None:
    for number in range(9):
        aging.arrive(tmp_path, number, kept=99)
    aging.run(tmp_path)
    store = Store(str(tmp_path / "store"))
    panes = WindowLog(store).committed()
    assert LogState.open(store).number == 0
    act(store, aging.KEPT)
    assert [pane.sequence for pane in WindowLog(store)] == [pane.sequence for pane in panes[4:]]
    assert not any(store.exists(pane.folder) for pane in panes[:4])
    # An earlier version would read the commit as it was written.
    assert WINDOWS in CommitLog(store).get(LogState.open(store).retirement).requires
    assert aging.leftovers(store) == []
    before = LogState.open(store)
    aging.arrive(tmp_path, 9, kept=99)
    aging.run(tmp_path)
    assert LogState.open(store).counts.events == before.counts.events + len(aging.events_of(9))
    act(store, aging.KEPT)
    assert [pane.start_ms for pane in WindowLog(store)] == [pane.start_ms for pane in panes[5:]] + [
        panes[-1].start_ms + WINDOW_MS
    ]


def test_a_needed_pane_holds_its_window_and_those_after_it(tmp_path: Path) -> None:
    store = a_store(tmp_path, [[0, 1, 2, 3, 9], [1]], names_previous=True)
    MonitorPlace(measured=4, counted=4).write(store)
    plan = plan_retirement(store, LogState.open(store), 10, None)
    assert (plan.windows, plan.panes, plan.held) == (1, 1, 4)
    assert [hold.reader for hold in plan.holds] == ["monitor"]
    retire(store, LogState.open(store), plan)
    assert read_from(store, -1) == [1, 2, 3, 4, 5]
