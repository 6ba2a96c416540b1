"""The commit log: one writer for each number, whole commits, one request for a look in vain, no gap unnoticed."""

import os
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.panes import a_commit, race
from weir.contracts import CommitLog, CommitTakenError, CorruptArtefactError, Store, UnfitStoreError, check_fitness
from weir.contracts.commits.commit_log import Cursor, Head
from weir.contracts.storage.documents import write_document


class CountingStore(Store):
    """Counts the requests for files."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        object.__setattr__(self, "reads", Counter[str]())

    def read(self, name: str) -> bytes:
        self.reads[name] += 1  # type: ignore[attr-defined]
        return super().read(name)


def grow(store: Store, panes: list[int]) -> Cursor:
    log, at = CommitLog(store), Cursor()
    for count in panes:
        at = log.append(a_commit(at, panes=count))
    return at


def follow(store: Store, at: Cursor | None = None) -> list[int]:
    log, at, found = CommitLog(store), at or Cursor(), []
    while (step := log.next(at)) is not None:
        one, at = step
        found.append(one.number)
    return found


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=20), st.data())
def test_a_pane_is_found_in_its_commit(panes: list[int], data: st.DataObject) -> None:
    store = Store(f"memory://find/{os.urandom(8).hex()}")
    end = grow(store, panes)
    assert follow(store) == list(range(len(panes)))
    holders = [number for number, count in enumerate(panes) for _ in range(count)]
    wanted = data.draw(st.integers(0, len(holders)))
    found = CommitLog(store).find(wanted)
    if wanted < len(holders):
        assert (found.number, found.sequence) == (holders[wanted], sum(panes[: holders[wanted]]))
    else:
        assert CommitLog(store).next(found) is None
    assert CommitLog(store).at(len(panes)) == end


def test_a_look_in_vain_is_one_request_whatever_the_age(tmp_path: Path) -> None:
    end = grow(Store(str(tmp_path)), [1] * 40)
    store = CountingStore(str(tmp_path))
    log = CommitLog(store)
    log.next(end)
    for _ in range(100):
        before = store.reads.total()  # type: ignore[attr-defined]
        assert log.next(end) is None
        assert store.reads.total() == before + 1  # type: ignore[attr-defined]
    assert store.reads["commits/HEAD"] > 3  # type: ignore[attr-defined]


def test_a_new_commit_is_seen_at_the_next_look(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    at, log = grow(store, [1]), CommitLog(store)
    for look in range(50):
        assert log.next(at) is None
        if look % 5 == 0:
            behind = CommitLog(store).append(a_commit(at))
            step = log.next(at)
            assert step is not None
            at = step[1]
            assert at == behind


@pytest.mark.parametrize("lost", [0, 3, 7, 9])
def test_a_lost_commit_is_named_by_everyone(tmp_path: Path, lost: int) -> None:
    store = Store(str(tmp_path))
    grow(store, [1] * 10)
    store.remove(CommitLog.name(lost))
    with pytest.raises(CorruptArtefactError, match=f"{lost:010d}.json: is missing, but later commits exist"):
        follow(store)
    with pytest.raises(CorruptArtefactError, match=f"{lost:010d}.json"):
        (CommitLog(store).find(0), CommitLog(store).find(lost), CommitLog(store).at(lost + 1))


def test_a_follower_that_waits_notices_that_the_next_commit_was_lost(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    at, log = grow(store, [1, 1]), CommitLog(store)
    log.next(at)
    grow_from = CommitLog(store).append(a_commit(at))
    CommitLog(store).append(a_commit(grow_from))
    store.remove(CommitLog.name(2))
    with pytest.raises(CorruptArtefactError, match=r"0000000002\.json: is missing"):
        list(iter(partial(log.next, at), "never"))


def test_without_head_a_listing_finds_the_end_and_any_gap(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    grow(store, [1] * 6)
    for head in (None, b"", b"\xff\xfe", b'{"number": 2}'):
        store.remove("commits/HEAD") if head is None else store.write("commits/HEAD", head)
        assert CommitLog(store).newest() == 5
        assert follow(store) == list(range(6))
    store.remove(CommitLog.name(2))
    with pytest.raises(CorruptArtefactError, match=r"0000000002\.json: is missing"):
        CommitLog(store).newest()


def test_without_head_a_log_of_one_commit_ends_there(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    grow(store, [1])
    store.remove("commits/HEAD")
    assert CommitLog(store).newest() == 0


def test_head_may_be_one_behind(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    end = grow(store, [1] * 4)
    CommitLog(store).point(Head(number=2, sequence=3))
    assert CommitLog(store).newest() == 3
    assert follow(store) == [0, 1, 2, 3]
    assert CommitLog(store).append(a_commit(end)).number == 5


def test_a_lost_answer_is_recognised_and_another_writer_is_not(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    log = CommitLog(store)
    mine = a_commit(Cursor(), "me")
    behind = log.append(mine)
    assert log.append(mine) == behind
    with pytest.raises(CommitTakenError, match="commit 0 is me's"):
        log.append(a_commit(Cursor(), "you"))
    assert log.get(0).writer == "me"


@pytest.mark.parametrize("writers", [2, 4])
def test_of_several_writers_one_makes_each_commit(tmp_path: Path, writers: int) -> None:
    store, made = Store(str(tmp_path)), race(str(tmp_path), writers, commits=25)
    assert sorted(number for number, _ in made) == list(range(25))
    assert [CommitLog(store).get(number).writer for number, _ in made] == [name for _, name in made]
    assert follow(store) == list(range(25))


def test_killed_at_any_moment_a_writer_leaves_whole_commits(tmp_path: Path) -> None:
    """A process that commits as fast as it can is killed again and again; what is there is always whole and linked."""
    found: list[int] = []
    for life in range(12):
        child = os.fork()
        if not child:
            try:
                log = CommitLog(Store(str(tmp_path)))
                at = log.at(log.newest() + 1)
                while True:
                    at = log.append(a_commit(at, f"life-{life}", panes=3))
            finally:
                os._exit(1)
        wait_for_commits(Store(str(tmp_path)), len(found) + 2)
        time.sleep(0.005 * life)
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        found = follow(Store(str(tmp_path)))
        assert found == list(range(len(found)))
    assert len(found) > 12


def wait_for_commits(store: Store, count: int) -> None:
    """Wait until a log has so many commits, however busy the machine is."""
    ends = time.monotonic() + 60
    while CommitLog(store).newest() < count - 1:
        assert time.monotonic() < ends, f"fewer than {count} commits after a minute"
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"number": 1}, "is commit 1: it was put in the place of another"),
        ({"predecessor": "0" * 32}, "follows 0{32}, but commit 1 is"),
        ({"sequence": 7}, "starts at pane 7, but 2 are before it"),
        ({"requires": ("time-travel",)}, "needs time-travel, unknown to this version: upgrade weir"),
    ],
)
def test_a_commit_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    store = Store(str(tmp_path))
    at = grow(store, [1, 1])
    write_document(store, CommitLog.name(2), a_commit(at).model_copy(update=change))
    with pytest.raises(CorruptArtefactError, match=f"0000000002.json: {problem}"):
        follow(store)


class Lenient(MemoryFileSystem):
    """Checks whether a file exists and then writes it, as many file systems do."""

    protocol = "lenient"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if mode == "create" and self.exists(path):
            raise FileExistsError(path)
        time.sleep(0.005)
        super().pipe_file(path, value, mode="overwrite", **kwargs)


def test_a_file_system_without_a_conditional_create_is_refused_by_name() -> None:
    fsspec.register_implementation("lenient", Lenient, clobber=True)
    with pytest.raises(UnfitStoreError, match=r"lenient:// has no conditional create .*: use local disk, or an object"):
        check_fitness(Store("lenient://bucket/store"))


def test_a_disk_without_hard_links_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(UnfitStoreError, match=f"{tmp_path}.*makes no hard links"):
        CommitLog(Store(str(tmp_path))).append(a_commit(Cursor()))
