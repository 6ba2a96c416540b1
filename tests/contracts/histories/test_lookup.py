import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contracts.user_rows import Plain, write_rows
from weir.contracts import CorruptArtefactError, HistoryFile, HistoryFiles, LocalCache, Store, UserHistories, UserKeys
from weir.contracts.base.keys import shards_of
from weir.contracts.histories import lookup as user_lookup

LENGTH, SHARDS, BOUND = 2, 3, 4
USERS = list(range(-6, 12))


def add(store: Store, files: HistoryFiles, token: str, plain: Plain) -> HistoryFiles:
    """Write what there is of each shard, and return the files with it."""
    found = dict(files.shards)
    for shard in range(SHARDS):
        mine = {user: row for user, row in plain.items() if shards_of(keys([user]), SHARDS)[0] == shard}
        if mine:
            name = HistoryFile.path(shard, "run", token)
            entry = write_rows(store, name, mine, LENGTH, bound=BOUND)
            listed = entry.model_copy(update={"name": name}).model_dump()
            found[shard] = (*found.get(shard, ()), HistoryFile(**listed, shard=shard, length=LENGTH))
    return HistoryFiles(shards=found)


def keys(users: list[int]) -> UserKeys:
    return UserKeys(np.array(users, np.int64))


def said(histories: UserHistories, users: list[int]) -> list[Any]:
    found = histories.find(keys(users))
    (totals, items, _), seen = found.records(), found.seen(np.arange(len(users)))
    return [
        (int(totals[n]), [item for item in items[n].tolist() if item], seen.of(n).tolist(), bool(seen.bounded[n]))
        for n in range(len(users))
    ]


deltas = st.lists(
    st.dictionaries(
        st.sampled_from(USERS),
        st.tuples(st.integers(1, 9), st.lists(st.integers(1, 99), min_size=1, max_size=2), st.integers(0, 3)),
        min_size=1,
    ),
    max_size=5,
)


@pytest.mark.parametrize("way", [(0, 1 << 20), (0, 1), (1 << 20, 1 << 20)])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deltas, st.lists(st.sampled_from([*USERS, 77]), max_size=30))
def test_the_newest_record_counts_and_seen_items_add_up(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    way: tuple[int, int],
    found: list[Any],
    asked: list[int],
) -> None:
    """In all ways: few users are looked up one by one, more of them together, many in blocks."""
    for name, limit in zip(("_SINGLY", "_MANY"), way, strict=True):
        monkeypatch.setattr(user_lookup, name, limit)
    store, files = Store(str(tmp_path_factory.mktemp("store"))), HistoryFiles()
    histories = UserHistories(store, SHARDS)
    records, seen, bounded, item = dict[int, Any](), dict[int, list[int]](), set[int](), 0
    for number, delta in enumerate(found):
        plain = {}
        for user, (total, items, news) in delta.items():
            new = list(range(item + 1, item + news + 1))
            item += news
            plain[user] = (total, [(one, 5) for one in items], new, False)
            records[user] = (total, items)
            seen[user] = [*seen.get(user, []), *new]
            bounded |= {user} if len(seen[user]) > BOUND else set()
        files = add(store, files, str(number), plain)
        histories.take_in(files)
    expected = [(*records.get(user, (0, [])), seen.get(user, [])[-BOUND:], user in bounded) for user in asked]
    assert said(histories, asked) == expected


def test_only_new_files_are_opened_and_replaced_ones_stay_readable(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    first = add(store, HistoryFiles(), "a", {user: (1, [(7, 1)], [7], False) for user in USERS})
    histories = UserHistories(store, SHARDS)
    histories.take_in(first)
    for file in first.files:
        Path(store.path(file.name)).rename(store.path(file.name) + ".away")
    histories.take_in(add(store, first, "b", {3: (2, [(7, 1), (8, 2)], [8], False)}))
    assert said(histories, [3, 4]) == [(2, [7, 8], [7, 8], False), (1, [7], [7], False)]
    with pytest.raises(CorruptArtefactError, match="missing"):
        UserHistories(store, SHARDS).take_in(first)


def test_users_are_looked_up_while_files_are_taken_in(tmp_path: Path) -> None:
    """Whoever asks sees one of the versions, whole."""
    store, files, versions = Store(str(tmp_path)), HistoryFiles(), []
    for number in range(1, 30):
        files = add(store, files, str(number), {user: (number, [(number, 1)], [number], False) for user in USERS})
        versions.append(files)
    histories, seen, done = UserHistories(store, SHARDS), set[int](), threading.Event()

    def ask() -> None:
        while not done.is_set():
            totals = set(histories.find(keys(USERS)).records().totals.tolist())
            assert len(totals) == 1
            seen.update(totals)

    thread = threading.Thread(target=ask)
    thread.start()
    for version in versions * 5:
        histories.take_in(version)
    done.set()
    thread.join()
    assert len(seen) > 1


def test_files_of_an_object_store_are_fetched_once_and_the_oldest_go(tmp_path: Path) -> None:
    store = Store(f"memory://{tmp_path.name}")
    plain = {user: (1, [(7, 1)], [7], False) for user in USERS}
    files = list(add(store, HistoryFiles(), "a", plain).files)
    cache = LocalCache(tmp_path / "cache", limit=files[0].size + files[1].size)
    paths = [cache.path(store, file) for file in files[:2]]
    assert [path.stat().st_size for path in paths] == [file.size for file in files[:2]]
    store.remove(files[0].name)
    assert cache.path(store, files[0]) == paths[0]
    third = cache.path(store, files[2])
    assert sorted((tmp_path / "cache").iterdir()) == sorted([paths[0], third])
    with pytest.raises(CorruptArtefactError, match="missing"):
        LocalCache(tmp_path / "other").path(store, files[0])
    store.write(files[1].name, b"something else")
    with pytest.raises(CorruptArtefactError, match="has 14 bytes"):
        LocalCache(tmp_path / "other").path(store, files[1])
    assert list((tmp_path / "other").iterdir()) == []
