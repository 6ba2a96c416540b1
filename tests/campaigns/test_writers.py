"""Two writers at once on one store, and commits whose answers are lost: every event is committed once all the same."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.campaigns import committed_once
from tests.campaigns.hunter import IS_LONG, counting, size_of
from tests.campaigns.ingest_lives import settings, write_part
from tests.campaigns.lives import ROOT
from tests.integration.object_store import bucket
from weir.contracts import Commit, CommitLog, CommitTakenError, Store
from weir.pipelines.batch.ingest import ingest


def race(folder: Path, url: str, parts: int) -> int:
    """Run two writers; return how many commits one of them found taken."""
    (folder / "log").mkdir()
    command = [sys.executable, "-m", "tests.campaigns.two_writers", str(folder), url, str(parts)]
    with (folder / "writers.log").open("w") as log:
        done = subprocess.run(command, check=False, cwd=ROOT, stderr=log)
    said = (folder / "writers.log").read_text()
    assert done.returncode == 0, said
    return said.count("is another writer's")


MOST_RACES = 8
"""Whether two writers meet depends on the machine: they race until they have met."""


def test_two_writers_on_one_disk_commit_every_event_once(tmp_path: Path) -> None:
    parts = size_of(3, 12)
    with counting("two writers: disk") as row:
        for number in range(MOST_RACES):
            folder = tmp_path / str(number)
            folder.mkdir()
            row.faults = row.refused = race(folder, str(folder / "store"), parts)
            committed_once.check(Store(str(folder / "store")), range(parts), settings(folder).history_length)
            if row.faults:
                break
        assert row.faults, "the writers never met: the test has not tested that"


@pytest.mark.skipif(not IS_LONG, reason="in the long form; a short race of commits alone is in test_object_store")
def test_two_writers_on_an_object_store_commit_every_event_once(tmp_path: Path) -> None:
    with bucket(tmp_path / "minio/data") as url, counting("two writers: object store") as row:
        store, parts = Store(f"{url}/store"), 12
        row.faults = row.refused = race(tmp_path, store.url, parts)
        assert row.faults, "the writers never met: the test has not tested that"
        committed_once.check(store, range(parts), settings(tmp_path).history_length)


def test_commits_whose_answer_is_lost_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is created, and the writer is told that it was not, as after a connection that broke."""
    (tmp_path / "log").mkdir()
    store, parts = Store(str(tmp_path / "store")), size_of(2, 10)
    lost: list[str] = []
    create: Callable[[Store, str, bytes], bool] = Store.create

    def losing(self: Store, name: str, data: bytes) -> bool:
        made = create(self, name, data)
        if made and name.startswith("commits/"):
            lost.append(name)
            return False
        return made

    monkeypatch.setattr(Store, "create", losing)
    with counting("lost answers") as row:
        for part in range(parts):
            write_part(tmp_path, part)()
            ingest(store, settings(tmp_path), registry=CollectorRegistry())
        monkeypatch.undo()
        row.faults = row.without_effect = len(lost)
        assert len(lost) == len(committed_once.check_commits(store))
        committed_once.check(store, range(parts), settings(tmp_path).history_length)


def test_commits_appended_again_are_theirs_and_anothers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    store, parts = Store(str(tmp_path / "store")), 2
    log = CommitLog(store)
    with counting("commits appended again") as row:
        for part in range(parts):
            write_part(tmp_path, part)()
            ingest(store, settings(tmp_path), registry=CollectorRegistry())
            newest = log.newest()
            for number in range(newest + 1):
                commit: Commit = log.get(number)
                assert log.append(commit) == log.at(number + 1)
                with pytest.raises(CommitTakenError):
                    log.append(commit.model_copy(update={"writer": "another"}))
                row.faults += 2
                row.refused += 1
                row.without_effect += 1
            assert log.newest() == newest
        committed_once.check(store, range(parts), settings(tmp_path).history_length)
