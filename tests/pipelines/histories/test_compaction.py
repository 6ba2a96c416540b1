"""Histories of stores that have none, damaged files, and merges between runs, on real stores."""

import random
import shutil
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.pipelines import support
from tests.pipelines.support import Event
from weir.contracts import CommitLog, CorruptArtefactError, FileEntry, LogState, Store, WindowLog
from weir.contracts.verification import verify
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.histories import compaction as merger
from weir.pipelines.histories.compaction import HistoryKeeper
from weir.pipelines.histories.merging import broken_shards
from weir.pipelines.runs.run_registry import mark, new_run, sweep
from weir.runtime.background import BackgroundTask

ROUNDS = 7


def bring_in(folder: Path, number: int, **changes: Any) -> Store:
    rng = random.Random(number)
    events = [
        Event(f"u{rng.randrange(9)}", f"i{number}-{n}", 20 * number + n // 2 - rng.choice([0, 0, 9]),
              rng.choice(["click", "click", "skip"]))
        for n in range(40)
    ]  # fmt: skip
    support.write_lines(folder / "log/a.jsonl", [event.line() for event in events])
    store = Store(str(folder / "store"))
    ingest(store, support.config(folder, **changes), registry=CollectorRegistry())
    return store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of seven runs, whose histories were merged on the way."""
    folder = tmp_path_factory.mktemp("keeper")
    for number in range(ROUNDS):
        bring_in(folder, number)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    # Paths of log files are known to the store.
    return tmp_path


def store_of(folder: Path) -> Store:
    return Store(str(folder / "store"))


def keeper(folder: Path, **changes: Any) -> HistoryKeeper:
    return HistoryKeeper(store_of(folder), support.config(folder, **changes), LogState.open(store_of(folder)))


def test_runs_merge_their_histories_by_commits_of_their_own(folder: Path) -> None:
    store = store_of(folder)
    log, state = CommitLog(store), LogState.open(store)
    commits = [log.get(number) for number in range(log.newest() + 1)]
    merges = [commit for commit in commits if any(file.replaces for file in commit.histories)]
    assert merges
    assert all(not commit.panes and commit.requires == ("histories",) for commit in merges)
    assert all(len(files) <= 5 for files in state.histories.shards.values())
    assert state.histories.covered == state.cursor.sequence
    support.check_histories(store, 3)
    assert verify(store).findings == []
    assert store.glob("state/runs/*") == []


def test_replaced_files_stay_for_an_hour_and_are_dropped_by_the_next_merge(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(folder)
    replaced = set(LogState.open(store).histories.replaced)
    assert replaced
    assert all(store.exists(name) for name in replaced)
    monkeypatch.setattr(merger, "REPLACED_SECONDS", -1.0)
    for number in range(ROUNDS, ROUNDS + 5):
        bring_in(folder, number)
    assert not any(store.exists(name) for name in replaced)
    assert not replaced & LogState.open(store).histories.names
    assert verify(store).findings == []


def without_histories(store: Store) -> None:
    """Rewrite the log without histories: no field, no file."""
    panes = [(commit.panes, commit) for commit in map(CommitLog(store).get, range(CommitLog(store).newest() + 1))]
    for name in ("commits", "histories"):
        store.remove(name)
    for found, commit in panes:
        if found or commit.sources or commit.letters:
            WindowLog(store).commit(*found, sources=commit.sources, letters=commit.letters)


def test_a_store_without_histories_in_its_log_gets_them_from_its_windows(folder: Path) -> None:
    store = store_of(folder)
    without_histories(store)
    before = LogState.open(store)
    bring_in(folder, ROUNDS)
    assert CommitLog(store).get(before.cursor.number).covered == before.cursor.sequence
    support.check_histories(store, 3)
    assert verify(store).findings == []


def test_another_length_is_rebuilt(folder: Path) -> None:
    one = keeper(folder, history_length=5)
    one.repair()
    assert {file.length for file in one.state.histories.files} == {5}
    support.check_users(store_of(folder), 5, memory(store_of(folder)))


def memory(store: Store) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for manifest in support.committed(store):
        for row in WindowLog(store).all_examples(manifest).to_pylist():
            mine = found.setdefault(row["user_key"], [])
            if row["label"] == 1:
                mine.append((row["timestamp"], row["item_key"]))
    return found


@pytest.mark.parametrize("damage", ["missing", "cut", "seen"])
def test_a_damaged_file_is_named_and_built_again(folder: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    store = store_of(folder)
    name = LogState.open(store).histories.shards[1][0].name
    data = bytearray(store.read(name))
    if damage == "missing":
        store.remove(name)
    elif damage == "cut":
        store.write(name, bytes(data[:-4096]))
    else:
        # After header, prefixes, keys and records, each of one page: a look-up reads it in every file.
        data[4 * 4096 : 5 * 4096] = bytes(4096)
        store.write(name, bytes(data))
    bring_in(folder, ROUNDS)
    assert name in caplog.text
    assert name not in {file.name for file in LogState.open(store).histories.files}
    support.check_histories(store, 3)


def test_a_window_that_is_damaged_too_is_named(folder: Path) -> None:
    store = store_of(folder)
    store.remove(LogState.open(store).histories.shards[1][0].name)
    window = store.glob("windows/*/*/examples-00001*")[0]
    store.write(window, b"nothing")
    with pytest.raises(CorruptArtefactError, match="examples-00001"):
        keeper(folder).repair()


def test_what_a_killed_merge_leaves_is_swept(folder: Path) -> None:
    store = store_of(folder)
    run = new_run()
    mark(store, run)
    store.write(f"histories/00000/{run}-0.users", b"half")
    kept = LogState.open(store).histories.names
    assert run in sweep(store)
    assert set(store.find("histories")) == kept
    assert broken_shards(store, support.config(folder), LogState.open(store)) == {}


@pytest.mark.parametrize("writes", [True, False], ids=["while it writes a file", "when it is complete"])
def test_a_merge_that_was_taken_for_killed_is_not_committed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    store, take = store_of(folder), Store.take

    def take_late(store: Store, draft: Path, name: str, *, rows: int = 0) -> FileEntry:
        if writes:
            sweep(store)
        return take(store, draft, name, rows=rows)

    monkeypatch.setattr(Store, "take", take_late)
    made = merger.HistoryMerger(store, support.config(folder))
    state = LogState.open(store)
    shard = next(files for files in state.histories.shards.values() if len(files) > 1)
    made._run = new_run()
    mark(store, made._run)
    made._task = BackgroundTask("merge histories", partial(made._merge, [shard]))
    with pytest.raises(FileNotFoundError) if writes else nullcontext():
        assert made._task.result()
    sweep(store)
    before = CommitLog(store).newest()
    assert not made.commit(state, wait=True)
    assert CommitLog(store).newest() == before
    assert verify(store).findings == []


def test_a_merge_whose_files_another_writer_has_replaced_is_discarded(folder: Path) -> None:
    store = store_of(folder)
    first, second = keeper(folder), keeper(folder)
    for one in (first, second):
        one._rebuild([0, 1])
    assert second.state.cursor == LogState.open(store).cursor
    assert verify(store).findings == []
    support.check_histories(store, 3)
