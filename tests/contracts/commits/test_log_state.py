from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.panes import a_pane
from weir.contracts import CommitLog, CorruptArtefactError, LogState, SourceSpan, Store, WindowLog

windows = st.lists(st.integers(0, 4), max_size=3, unique=True)
runs = st.lists(st.tuples(windows, st.sampled_from("ab"), st.integers(1, 9), st.integers(0, 9)), max_size=12)


def make(log: WindowLog, found: list[Any], stops: dict[str, int], resumes: dict[str, int]) -> None:
    """Commit runs: (windows, partition, rows read, rows left open)."""
    for number, (starts, partition, rows, left) in enumerate(found):
        stop = stops[partition] = stops.get(partition, 0) + rows
        # Rows that are open were not accounted for before: the position never goes back.
        resume = resumes[partition] = max(resumes.get(partition, 0), stop - left)
        span = SourceSpan(start=0, stop=stop, resume=resume, size=stop, dead=number)
        panes = [a_pane(0, start_ms=10 * start, max_event_ms=10 * start + 1) for start in sorted(starts)]
        log.commit(*panes, sources={partition: span})


@settings(max_examples=40, deadline=None)
@given(runs, st.integers(0, 12))
def test_the_state_is_the_same_however_it_is_reached(found: list[Any], saved_at: int) -> None:
    store = Store(f"memory://state/{id(found)}")
    store.remove("")
    log, commits = WindowLog(store), CommitLog(store)
    stops, resumes = dict[str, int](), dict[str, int]()
    make(log, found[:saved_at], stops, resumes)
    early = LogState.open(store)
    make(log, found[saved_at:], stops, resumes)
    early.catch_up(commits)
    late = LogState.open(store)
    assert early == late
    # The plain reading of the rule, from all commits.
    done = [commits.get(number) for number in range(len(found))]
    for key in ("a", "b"):
        for start in range(5):
            stops = [one.sources[key].stop for one in done if key in one.sources and 10 * start in starts_of(one)]
            resume = late.sources[key].resume if key in late.sources else 0
            counted = late.counted.get(key, {}).get(10 * start, 0)
            assert max(resume, counted) == max([resume, *stops])
    for start in range(5):
        panes = late.panes_of(10 * start)
        holders = [one.number for one in done if 10 * start in starts_of(one)]
        assert (panes is None) == (not holders)
        if panes is not None:
            assert (panes.count, panes.commit) == (len(holders), holders[-1])
    assert late.counts.events == 2 * sum(len(one.panes) for one in done)


def starts_of(commit: Any) -> set[int]:
    return {pane.start_ms for pane in commit.panes}


def test_a_snapshot_spares_the_commits_before_it(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    log, commits = WindowLog(store), CommitLog(store)
    state = LogState.open(store)
    written = []
    for number in range(150):
        log.commit(a_pane(number), sources={"a": SourceSpan(start=0, stop=number, resume=number, size=number)})
        state.catch_up(commits)
        if state.save(commits):
            written.append(number)
    assert written == [63, 127]
    head = commits.head()
    assert head is not None
    assert head.snapshot == 127
    expected = LogState.open(store)
    for number in range(100):
        store.remove(CommitLog.name(number))
    assert LogState.open(store) == expected
    assert expected.model_dump(exclude={"snapshot"}) == state.model_dump(exclude={"snapshot"})


@pytest.mark.parametrize("damage", ["missing", "altered"])
def test_a_damaged_snapshot_is_not_used(tmp_path: Path, damage: str) -> None:
    store = Store(str(tmp_path))
    log, commits = WindowLog(store), CommitLog(store)
    for number in range(70):
        log.commit(a_pane(number))
    state = LogState.open(store)
    assert state.save(commits)
    [name] = store.glob("commits/snapshot-*")
    if damage == "missing":
        store.remove(name)
    else:
        data = bytearray(store.read(name))
        data[200] ^= 4
        store.write(name, bytes(data))
    assert LogState.open(store).model_dump(exclude={"snapshot"}) == state.model_dump(exclude={"snapshot"})


def test_a_gap_is_refused_even_without_head(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    log = WindowLog(store)
    for number in range(5):
        log.commit(a_pane(number))
    store.remove("commits/HEAD")
    store.remove(CommitLog.name(2))
    with pytest.raises(CorruptArtefactError, match=r"0000000002\.json: is missing"):
        LogState.open(store)
