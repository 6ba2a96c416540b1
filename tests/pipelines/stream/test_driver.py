"""What the driver does for a store beside its workers, on a real store that bounded runs have filled."""

import random
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.pipelines import support
from tests.pipelines.support import Event
from weir.contracts import CommitLog, CorruptArtefactError, LogState, Store
from weir.contracts.verification import verify
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.histories.compaction import HistoryKeeper
from weir.pipelines.histories.merging import MOST_DELTAS
from weir.pipelines.runs.run_registry import GRACE_SECONDS, is_marked, mark, new_run, only_writer
from weir.pipelines.stream.driver import Upkeep

RUNS = MOST_DELTAS + 2


def bring_in(folder: Path, number: int) -> Store:
    chance = random.Random(number)
    events = [
        Event(f"u{chance.randrange(9)}", f"i{n % 7}", 20 * number + n, event_id=f"{number}-{n}") for n in range(15)
    ]
    support.write_lines(folder / f"log/{number}.jsonl", [event.line() for event in events])
    store = Store(str(folder / "store"))
    ingest(store, support.config(folder), registry=CollectorRegistry())
    return store


def upkeep_of(folder: Path, store: Store) -> Upkeep:
    return Upkeep(store, support.config(folder), LogState.open(store))


def most_files(store: Store) -> int:
    return max(map(len, LogState.open(store).histories.shards.values()))


def test_histories_are_merged_while_others_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bring_in_only(number: int) -> Store:
        """A run that leaves the merging to others, as a worker does."""
        with monkeypatch.context() as patch:
            for name in ("settle", "keep"):
                patch.setattr(HistoryKeeper, name, lambda _: None)
            return bring_in(tmp_path, number)

    for number in range(RUNS):
        store = bring_in_only(number)
    upkeep = upkeep_of(tmp_path, store)
    upkeep.begin()
    before = most_files(store)
    upkeep.step(set())
    bring_in_only(RUNS)
    end = time.monotonic() + 60
    while most_files(store) >= before:
        assert time.monotonic() < end
        upkeep.step(set())
    upkeep.end()
    assert upkeep.state.cursor == LogState.open(store).cursor
    assert verify(store).findings == []
    support.check_histories(store, 3)


def test_a_step_gives_way_to_a_worker_that_commits(tmp_path: Path) -> None:
    store = bring_in(tmp_path, 0)
    upkeep = upkeep_of(tmp_path, store)
    upkeep.begin()
    bring_in(tmp_path, 1)
    with only_writer(store):
        upkeep.step(set())
    assert upkeep.state.number < CommitLog(store).newest()
    upkeep.step(set())
    assert upkeep.state.number == CommitLog(store).newest()


def test_what_was_killed_is_swept_at_the_start_and_later_by_its_age(tmp_path: Path) -> None:
    store = bring_in(tmp_path, 0)
    killed, young = new_run(), new_run()
    old = f"{int(1000 * (time.time() - GRACE_SECONDS - 60)):012x}{killed[12:]}"
    mark(store, killed)
    upkeep = upkeep_of(tmp_path, store)
    upkeep.begin()
    assert not is_marked(store, killed), "no worker runs yet: whatever has a mark was killed"
    for run in (old, young):
        mark(store, run)
    upkeep.step(set())
    assert is_marked(store, old), "not yet"
    upkeep._next_sweep = 0.0
    upkeep.step(set())
    assert (is_marked(store, old), is_marked(store, young)) == (False, True)


def test_a_file_that_stops_a_worker_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bring_in(tmp_path, 0)
    upkeep = upkeep_of(tmp_path, store)
    upkeep.begin()
    name = LogState.open(store).histories.shards[1][0].name
    data = bytearray(store.read(name))
    # After header, prefixes, keys and records, each of one page: a look-up reads it in every file.
    data[4 * 4096 : 5 * 4096] = bytes(4096)
    store.write(name, bytes(data))
    with monkeypatch.context() as patch:
        patch.setattr(HistoryKeeper, "repair", stopped)
        with pytest.raises(CorruptArtefactError) as failure:
            bring_in(tmp_path, 1)
    with only_writer(store):
        assert not upkeep.mend(str(failure.value)), "a worker commits right now"
    for _ in range(2):
        assert upkeep.mend(str(failure.value))
        assert name not in {file.name for file in LogState.open(store).histories.files}
    built = LogState.open(store).number
    assert upkeep.mend("ValueError: something else")
    assert LogState.open(store).number == built
    bring_in(tmp_path, 1)
    support.check_histories(store, 3)


def stopped(_: HistoryKeeper, error: CorruptArtefactError | None = None) -> None:
    """End a run as a worker ends, which repairs nothing."""
    if error is not None:
        raise error
