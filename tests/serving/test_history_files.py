from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import CorruptArtefactError, HistoryFile, HistoryFiles, LocalCache, Store
from weir.serving import history_files
from weir.serving.history_files import LARGE, FilesAtHand, readable


def file(name: str, size: int = 10, shard: int = 0) -> HistoryFile:
    return HistoryFile(name=name, size=size, checksum="", shard=shard, length=4)


def wanted(*shards: tuple[HistoryFile, ...]) -> HistoryFiles:
    return HistoryFiles(covered=1, shards=dict(enumerate(shards)))


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Store]:
    yield Store(f"memory://{tmp_path.name}")
    memory = fsspec.filesystem("memory")
    if memory.exists(f"/{tmp_path.name}"):
        memory.rm(f"/{tmp_path.name}", recursive=True)


def test_files_on_local_disk_are_all_here(store: Store) -> None:
    at_hand = FilesAtHand(store, LocalCache())
    files = wanted((file("a"), file("b", LARGE + 1)))
    assert (at_hand.missing(files), at_hand.due(files, large=False), at_hand.due(files, large=True)) == ([], [], [])


def test_the_newest_and_small_files_come_first_and_large_ones_have_their_lane(remote: Store, tmp_path: Path) -> None:
    one = (file("base", LARGE + 1), file("mid", 50), file("new", 20))
    two = (file("base2", LARGE, 1), file("new2", 10, 1))
    at_hand = FilesAtHand(remote, LocalCache(tmp_path))
    files = wanted(one, two)
    assert [found.name for found in at_hand.missing(files)] == ["new2", "new", "mid", "base2", "base"]
    assert [found.name for found in at_hand.due(files, large=False)] == ["new2", "new", "mid", "base2"]
    assert [found.name for found in at_hand.due(files, large=True)] == ["base"]


def test_what_the_cache_has_no_room_for_is_not_due(remote: Store, tmp_path: Path) -> None:
    at_hand = FilesAtHand(remote, LocalCache(tmp_path, 100))
    files = wanted((file("base", 90), file("new", 20)))
    assert [found.name for found in at_hand.due(files, large=False)] == ["new"]
    stored = remote.write("new", b"x" * 20)
    at_hand.fetch(HistoryFile(**stored.model_dump(), shard=0, length=4))
    assert at_hand.due(files, large=False) == []
    assert [found.name for found in at_hand.due(wanted((file("base", 80), file("new", 20))), large=False)] == ["base"]


def test_a_file_that_failed_rests_before_it_is_tried_again(
    remote: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_hand = FilesAtHand(remote, LocalCache(tmp_path))
    files = wanted((file("lost"),))
    with pytest.raises(CorruptArtefactError, match="lost"):
        at_hand.fetch(file("lost"))
    assert (at_hand.due(files, large=False), len(at_hand.missing(files))) == ([], 1)
    monkeypatch.setattr(history_files.time, "monotonic", lambda: 1e12)
    assert [found.name for found in at_hand.due(files, large=False)] == ["lost"]


def test_names_of_files_out_of_use_are_forgotten(remote: Store, tmp_path: Path) -> None:
    at_hand = FilesAtHand(remote, LocalCache(tmp_path))
    for name in ("old", "new"):
        stored = remote.write(name, name.encode())
        at_hand.fetch(HistoryFile(**stored.model_dump(), shard=0, length=4))
    at_hand.forget_all_but(wanted((file("new"),)))
    assert (at_hand.has(file("old")), at_hand.has(file("new"))) == (False, True)


NAMES = st.lists(st.integers(0, 12), unique=True, max_size=8)


@given(NAMES.map(sorted), NAMES.map(sorted), st.sets(st.integers(0, 12)))
def test_files_answer_in_the_order_of_their_age(before: list[int], wanted: list[int], here: set[int]) -> None:
    """Names are ages: whatever has come so far, the newest file is read last."""
    known = {number: file(str(number)) for number in range(13)}
    names = {known[number].name for number in here | set(before)}
    found = readable(tuple(known[n] for n in before), tuple(known[n] for n in wanted), lambda one: one.name in names)
    ages = [int(one.name) for one in found]
    if set(wanted) <= here | set(before):
        assert ages == wanted
        return
    assert set(ages) == set(before) | (set(wanted) & here)
    assert [age for age in ages if age in before] == before
    assert [age for age in ages if age in wanted] == sorted(set(wanted) & set(ages))


def test_what_is_replaced_answers_until_the_merged_file_is_here() -> None:
    base, one, two, merged, new = (file(name) for name in ("base", "one", "two", "merged", "new"))
    before = (base, one, two)
    assert readable(before, (base, merged, new), {base, one, two, new}.__contains__) == (base, one, two, new)
    assert readable(before, (merged, new), {base, one, two, new}.__contains__) == (base, one, two, new)
    assert readable((*before, new), (merged, new), {merged, new}.__contains__) == (merged, new)
    assert readable((), (base, one, two), {two}.__contains__) == (two,)
    assert readable((two,), (base, one, two), {one, two}.__contains__) == (one, two)
