"""Runs that have not ended: what a killed run leaves is removed, and locks keep writers apart."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.contracts.panes import a_pane
from weir.contracts import Store, WindowLog
from weir.contracts.commits.commit_log import Cursor
from weir.contracts.storage.local_files import new_draft
from weir.pipelines.runs.run import Base, Run
from weir.pipelines.runs.run_registry import (
    GRACE_SECONDS,
    BusyStoreError,
    discard,
    new_run,
    only_driver,
    only_writer,
    registered,
    sweep,
)


class KilledError(Exception):
    """Stands for a kill: raised where a run is to end."""


def a_run(number: int = 0, age: float = 0.0) -> Run:
    """A run that wants to make commit `number`; it started so many seconds ago."""
    name = f"{int(1000 * (time.time() - age)):012x}{new_run()[12:]}"
    return Run(name, Base(Cursor(number)), {}, 10, 0, flush=True)


def files(run: Run) -> list[str]:
    return [
        f"windows/a-b/{run.id}/items.parquet",
        f"windows/c-d/{run.id}/items.parquet",
        f"dead-letters/part.jsonl/{run.id}-{run.id}.jsonl",
    ]


def killed(store: Store, run: Run, *, committed: bool = False) -> None:
    """Let a run write its files, make its commit if it is to, and die."""
    with contextlib.suppress(KilledError), registered(store, run):
        for name in [*files(run), f"{run.folder}/rows.arrow"]:
            store.write(name, b"data")
        if committed:
            WindowLog(store).commit(a_pane(0, attempt=run.id), writer=run.id)
        raise KilledError


def there(store: Store, run: Run) -> list[str]:
    return [name for name in files(run) if store.exists(name)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


@pytest.fixture
def remote(request: pytest.FixtureRequest) -> Store:
    return Store(f"memory://{request.node.name}-{time.time_ns()}")


def test_files_of_a_run_killed_before_its_commit_go(store: Store) -> None:
    run, other = a_run(), a_run()
    killed(store, run)
    store.write(files(other)[0], b"data")
    assert sweep(store) == [run.id]
    assert there(store, run) == []
    assert there(store, other) == files(other)[:1]
    assert not store.exists(run.folder)
    assert sweep(store) == []


def test_files_of_a_run_killed_after_its_commit_stay(store: Store) -> None:
    run = a_run()
    killed(store, run, committed=True)
    assert sweep(store) == [run.id]
    assert there(store, run) == files(run)
    assert not store.exists(run.folder)


def test_files_go_where_another_writer_has_made_the_commit(store: Store) -> None:
    run, faster = a_run(), a_run()
    killed(store, run)
    killed(store, faster, committed=True)
    assert set(sweep(store)) == {run.id, faster.id}
    assert there(store, run) == []
    assert there(store, faster) == files(faster)


def test_of_a_completed_run_only_the_rows_in_hand_go(store: Store) -> None:
    run = a_run()
    with registered(store, run):
        for name in [*files(run), f"{run.folder}/rows.arrow"]:
            store.write(name, b"data")
    assert sweep(store) == []
    assert there(store, run) == files(run)
    assert not store.exists(run.folder)


def test_a_run_on_an_object_store_is_given_time(remote: Store) -> None:
    young, old = a_run(), a_run(age=GRACE_SECONDS + 1)
    for run in (young, old):
        killed(remote, run)
    assert sweep(remote) == [old.id]
    assert there(remote, young) == files(young)
    assert there(remote, old) == []
    assert sweep(remote, grace_seconds=0) == [young.id]
    assert there(remote, young) == []


@pytest.mark.parametrize("damage", [b"", b"\xff\x00", b'{"run": "x", "number": 0}'])
def test_behind_a_damaged_mark_everything_stays_and_a_warning_names_it(
    store: Store, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    run = a_run()
    killed(store, run)
    store.write(f"{run.folder}/started.json", damage)
    assert sweep(store) == []
    assert there(store, run) == files(run)
    assert store.exists(f"{run.folder}/rows.arrow")
    [record] = caplog.records
    assert store.path(f"{run.folder}/started.json") in record.getMessage()


def test_ids_of_runs_sort_in_order_of_time() -> None:
    names = []
    for _ in range(5):
        names.append(new_run())
        time.sleep(0.002)
    assert names == sorted(names)
    assert len({name[12:] for name in names}) == 5


def test_drafts_of_a_killed_run_go_with_it_however_young(store: Store, tmp_path: Path) -> None:
    run, other = a_run(), a_run()
    killed(store, run)
    theirs = [f"histories/00000/{one.id}-00.users" for one in (run, other)]
    drafts = [new_draft(tmp_path / name) for name in [*files(run), theirs[0]]]
    another = new_draft(tmp_path / theirs[1])
    assert sweep(store) == [run.id]
    assert [draft for draft in drafts if draft.exists()] == []
    assert another.exists()
    discard(store, other)
    assert not another.exists()


def test_after_a_kill_halves_of_files_go_once_they_are_old(store: Store, tmp_path: Path) -> None:
    half, young = tmp_path / "bundles/v1/.half.tmp", tmp_path / "commits/.young.tmp"
    for path in (half, young):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    os.utime(half, (time.time() - 2 * GRACE_SECONDS,) * 2)
    assert sweep(store) == []
    assert half.exists()
    killed(store, a_run())
    sweep(store)
    assert (half.exists(), young.exists()) == (False, True)


HOLD = """
import sys
from weir.contracts import Store
from weir.pipelines.runs.run_registry import only_writer
with only_writer(Store(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_pipeline_is_refused_until_the_first_has_died(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(BusyStoreError, match=r"ingest\.lock"), only_writer(store):
            pass
        other.kill()
        other.wait()
    with only_writer(store):
        pass
    with only_writer(store):
        pass


def test_errors_of_the_holder_pass_through(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError), only_writer(Store(str(tmp_path))):
        raise BlockingIOError


def test_object_stores_are_not_locked() -> None:
    with only_writer(Store("memory://lock")), only_writer(Store("memory://lock")):
        pass


def test_a_driver_leaves_the_writing_to_its_workers(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with only_driver(store):
        with only_writer(store):
            pass
        with (
            pytest.raises(BusyStoreError, match=r"another pipeline drives this store .*driver\.lock"),
            only_driver(store),
        ):
            pass
