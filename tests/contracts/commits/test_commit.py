from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import (
    Commit,
    CommitLog,
    CorruptArtefactError,
    HistoryFile,
    HistoryFiles,
    LogState,
    Store,
    WindowLog,
)


def a_file(name: str, shard: int = 0, replaces: Sequence[str] = ()) -> HistoryFile:
    return HistoryFile(name=name, size=1, checksum="", shard=shard, length=2, replaces=tuple(replaces))


def a_commit(number: int, *files: HistoryFile, **fields: Any) -> Commit:
    given: dict[str, Any] = {"number": number, "writer": "w", "predecessor": "", "committed_at": number, "sequence": 0}
    return Commit(**given | fields, histories=files, requires=("histories",))


def names(files: HistoryFiles, shard: int = 0) -> list[str]:
    return [file.name for file in files.shards.get(shard, ())]


@given(st.lists(st.one_of(st.just("delta"), st.tuples(st.integers(0, 5), st.integers(1, 5)))))
def test_a_merged_file_takes_the_place_of_those_it_replaces(steps: list[Any]) -> None:
    files, plain, replaced = HistoryFiles(), list[str](), list[str]()
    for number, step in enumerate(steps):
        name, gone = f"f{number}", list[str]()
        if step == "delta":
            plain.append(name)
        else:
            start, count = step
            gone = plain[start : start + count]
            if not gone:
                continue
            plain[start : start + len(gone)] = [name]
        files = files.after(a_commit(number, a_file(name, replaces=gone)))
        replaced += gone
        assert names(files) == plain
        assert list(files.replaced) == replaced
        assert files.names == {*plain, *replaced}


def test_a_merge_of_what_is_no_longer_a_run_is_refused() -> None:
    files = HistoryFiles()
    for number, name in enumerate("abc"):
        files = files.after(a_commit(number, a_file(name)))
    for gone in (["a", "c"], ["b", "a"], ["c", "d"], ["d"]):
        assert not files.fits(a_file("x", replaces=gone))
        with pytest.raises(CorruptArtefactError, match="not next to each other"):
            files.after(a_commit(3, a_file("x", replaces=gone)))
    assert files.fits(a_file("x", replaces=["b", "c"]))
    assert not files.fits(a_file("x", shard=1, replaces=["b", "c"]))


def test_replaced_files_expire_and_are_dropped() -> None:
    files = HistoryFiles().after(a_commit(0, a_file("a"), a_file("b", 1), covered=3))
    files = files.after(a_commit(10, a_file("c", replaces=["a"])))
    assert (files.covered, files.expired(10), files.expired(11)) == (3, [], ["a"])
    files = files.after(a_commit(11, dropped=("a",)))
    assert files.names == {"b", "c"}
    assert files.length == 2


def test_the_state_carries_them_through_a_snapshot() -> None:
    store = Store("memory://history-files")
    store.remove("")
    log = WindowLog(store)
    for number in range(70):
        replaced = {"replaces": [f"{number - 2:02d}", f"{number - 1:02d}"]} if number == 40 else {}
        log.commit(histories=(a_file(f"{number:02d}", **replaced),), requires=("histories",), covered=number)
    state = LogState()
    state.catch_up(CommitLog(store))
    assert state.save(CommitLog(store))
    opened = LogState.open(store)
    assert opened == state
    assert len(names(opened.histories)) == 68
    assert opened.histories.covered == 69
