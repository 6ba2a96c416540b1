""""""

import logging
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.serving.support import write_window
from tests.serving.users import BOUND, SHARDS, Event, User, users_of, write_file
from weir.contracts import (
    CorruptArtefactError,
    HistoryFile,
    HistoryFiles,
    LocalCache,
    SeenItems,
    Store,
    WindowLog,
    hash_id,
)
from weir.serving.histories import files as history_files
from weir.serving.histories.files import LARGE, FilesAtHand, FollowedHistories, readable
from weir.serving.metrics import HistoryMetrics

T = 1_700_000_000_000
NOBODY = [0, 0, 0, 0]


def following(store: Store, cache: LocalCache | None = None) -> FollowedHistories:
    """Return histories as a server that starts has them after its first look."""
    histories = FollowedHistories(store, HistoryMetrics(CollectorRegistry()), cache or LocalCache())
    histories.catch_up()
    return histories


def fetched(histories: FollowedHistories) -> None:
    for large in (False, True):
        histories.fetch(large=large)


def keys(*ids: str) -> np.ndarray:
    return np.array([hash_id(one) for one in ids], np.int64)


def items(histories: FollowedHistories, users: np.ndarray) -> list[list[int]]:
    return histories.look_up(users, np.arange(0)).items.tolist()


def newest(histories: FollowedHistories, user: str) -> list[int]:
    return items(histories, keys(user))[0]


def seen_by(histories: FollowedHistories, users: np.ndarray) -> SeenItems:
    return histories.look_up(users, np.arange(len(users))).seen


def seen(histories: FollowedHistories, user: str) -> tuple[set[int], bool]:
    found = seen_by(histories, keys(user))
    return set(found.of(0).tolist()), bool(found.bounded[0])


def sample(histories: FollowedHistories, name: str) -> float:
    metric = getattr(histories.metrics, name)
    return float(metric._value.get())


def of_shard(shard: int, number: int = 0) -> str:
    """Return a user of a shard."""
    names = (f"user-{n}" for n in range(1000))
    return [name for name in names if hash_id(name) % SHARDS == shard][number]


def random_windows(store: Store, windows: int) -> Iterator[None]:
    random = np.random.default_rng(0)
    for sequence in range(windows):
        events = [
            Event(f"user-{u}", f"item-{i}", T + 1000 * sequence + n, label=1 if sign else -1)
            for n, (u, i, sign) in enumerate(random.integers(0, (10, 30, 2), (30, 3)).tolist())
        ]
        write_window(store, sequence, events)
        yield


def check(histories: FollowedHistories, users: dict[int, User]) -> None:
    """Compare with what the windows say."""
    assert users
    for key, user in users.items():
        one = np.array([key])
        assert items(histories, one)[0] == [item for _, item in user.newest]
        stored = seen_by(histories, one)
        assert set(stored.of(0).tolist()) == set(user.seen[-BOUND:])
        assert bool(stored.bounded[0]) == (len(user.seen) > BOUND)


def test_nobody_is_known_before_the_first_window(store: Store) -> None:
    histories = following(store)
    assert newest(histories, "ann") == [0]
    assert seen(histories, "ann") == (set(), False)
    assert histories.sequence == -1


def test_windows_are_followed_in_commit_order(store: Store) -> None:
    histories = following(store)
    write_window(store, 0, [Event("ann", "a", T), Event("ann", "b", T + 1), Event("bob", "z", T)])
    histories.catch_up()
    write_window(store, 1, [Event("ann", "c", T + 2), Event("ann", "bad", T + 3, label=-1)])
    write_window(store, 2, [Event("ann", "late", T - 5)])
    histories.catch_up()
    assert newest(histories, "ann") == keys("late", "a", "b", "c").tolist()
    assert newest(histories, "bob") == [0, 0, 0, hash_id("z")]
    assert newest(histories, "eve") == NOBODY
    assert seen(histories, "ann") == (set(keys("late", "a", "b", "c", "bad").tolist()), False)
    assert (histories.sequence, sample(histories, "sequence"), sample(histories, "uncovered")) == (2, 2, 0)


def test_a_server_that_starts_knows_what_one_knows_that_followed(store: Store) -> None:
    steady = following(store)
    for _ in random_windows(store, 6):
        steady.catch_up()
    check(steady, users_of(store))
    check(following(store), users_of(store))


def test_a_start_reads_no_window(store: Store) -> None:
    for _ in random_windows(store, 3):
        pass
    users = users_of(store)
    store.remove("windows")
    check(following(store), users)


def test_a_batch_is_answered_in_its_order(store: Store) -> None:
    for _ in random_windows(store, 2):
        pass
    histories, users = following(store), [f"user-{n}" for n in (3, 99, 0, 3, 7)]
    assert items(histories, keys(*users)) == [newest(histories, user) for user in users]
    found = seen_by(histories, keys(*users))
    assert [set(found.of(n).tolist()) for n in range(5)] == [seen(histories, user)[0] for user in users]


def test_a_store_without_histories_is_told_once_and_taken_up_when_they_come(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    write_window(store, 0, [Event("ann", "a", T)], with_users=False)
    caplog.set_level(logging.INFO)
    histories = following(store)
    histories.catch_up()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "histories are missing, users count as unknown: start `weir ingest` once" in caplog.text
    assert (newest(histories, "ann"), histories.sequence, sample(histories, "uncovered")) == ([0], -1, 1)
    caplog.clear()
    ann = users_of(store)[hash_id("ann")]
    file = write_file(store, hash_id("ann") % SHARDS, "upgrade", {hash_id("ann"): (ann, ann.seen)})
    WindowLog(store).commit(histories=(file,), covered=1)
    histories.catch_up()
    assert newest(histories, "ann") == [0, 0, 0, hash_id("a")]
    assert (histories.sequence, sample(histories, "uncovered")) == (0, 0)
    assert [record.getMessage() for record in caplog.records] == [f"{store.url}: histories hold all windows"]


def test_windows_without_histories_are_told(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    write_window(store, 0, [Event("ann", "a", T)])
    write_window(store, 1, [Event("ann", "b", T + 1)], with_users=False)
    histories = following(store)
    assert "histories lack the newest windows" in caplog.text
    assert (histories.sequence, sample(histories, "uncovered")) == (0, 1)
    assert newest(histories, "ann") == [0, 0, 0, hash_id("a")]


def test_a_damaged_commit_stops_the_follower_before_it(store: Store) -> None:
    histories = following(store)
    write_window(store, 0, [Event("ann", "a", T)])
    write_window(store, 1, [Event("ann", "b", T + 1)])
    name = "commits/0000000001.json"
    whole = store.read(name)
    store.write(name, b"x")
    with pytest.raises(CorruptArtefactError, match=name):
        histories.catch_up()
    assert histories.sequence == 0
    assert newest(histories, "ann") == [0, 0, 0, hash_id("a")]
    store.write(name, whole)
    histories.catch_up()
    assert newest(histories, "ann") == [0, 0, *keys("a", "b").tolist()]


def stored_file(store: Store, shard: int) -> Path:
    [name] = store.glob(f"histories/{shard:05d}/*")
    return Path(store.path(name))


@pytest.mark.parametrize("starts", [True, False])
def test_a_damaged_file_leaves_the_other_shards_alone(store: Store, *, starts: bool) -> None:
    first, second = of_shard(0), of_shard(1)
    write_window(store, 0, [Event(second, "a", T)])
    histories = None if starts else following(store)
    write_window(store, 1, [Event(first, "b", T)])
    path = stored_file(store, 0)
    whole = path.read_bytes()
    path.write_bytes(b"x" * len(whole))
    if histories is None:
        histories = FollowedHistories(store, HistoryMetrics(CollectorRegistry()))
    for _ in range(2):
        with pytest.raises(CorruptArtefactError, match=path.name):
            histories.catch_up()
    assert newest(histories, second) == [0, 0, 0, hash_id("a")]
    assert newest(histories, first) == NOBODY
    assert seen(histories, first) == (set(), True)
    assert histories.sequence == (-1 if starts else 0)
    path.unlink()
    path.write_bytes(whole)
    histories.catch_up()
    assert newest(histories, first) == [0, 0, 0, hash_id("b")]
    assert (seen(histories, first), histories.sequence) == ((set(keys("b").tolist()), False), 1)


def test_a_user_whose_record_is_damaged_counts_as_unknown(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    ann, bob = of_shard(0), of_shard(0, 1)
    write_window(store, 0, [Event(ann, "a", T), Event(bob, "b", T)])
    path = stored_file(store, 0)
    data = bytearray(path.read_bytes())
    needle = hash_id("a").to_bytes(8, "little", signed=True)
    assert data.count(needle) == 2  # in the record, and among the seen items
    path.write_bytes(data.replace(needle, bytes(8)))
    histories = following(store)
    for _ in range(2):
        assert items(histories, keys(bob, ann, bob)) == [
            [0, 0, 0, hash_id("b")],
            NOBODY,
            [0, 0, 0, hash_id("b")],
        ]
        found = seen_by(histories, keys(ann, bob))
        assert (found.of(0).tolist(), found.of(1).tolist()) == ([], [hash_id("b")])
        assert found.bounded.tolist() == [True, False]
    assert sample(histories, "errors") == 4
    [told] = caplog.records
    assert path.name in told.getMessage()


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Store]:
    """A store that is no local disk."""
    name = f"memory://{tmp_path.name}"
    yield Store(name)
    fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)


@pytest.fixture
def cache(tmp_path: Path) -> LocalCache:
    return LocalCache(tmp_path / "cache")


def test_a_replica_looks_users_up_while_their_files_are_still_fetched(remote: Store, cache: LocalCache) -> None:
    ann, bob, carl = of_shard(0), of_shard(0, 1), of_shard(1)
    write_window(remote, 0, [Event(ann, "a", T), Event(bob, "b", T), Event(carl, "c", T)])
    write_window(remote, 1, [Event(ann, "later", T + 1)])
    histories = following(remote, cache)
    assert [newest(histories, user)[-1] for user in (ann, bob, carl)] == [0, 0, 0]
    assert (sample(histories, "missing"), sample(histories, "absent"), histories.sequence) == (3, 3, -1)
    assert seen(histories, ann) == (set(), True)
    newest_file = next(file for file in histories.due(large=False) if "/0001" in file.name)
    # Its records are complete, its seen items are not.
    histories._files.fetch(newest_file)
    histories._open_newest()
    assert newest(histories, ann) == [0, 0, *keys("a", "later").tolist()]
    assert seen(histories, ann) == ({hash_id("later")}, True)
    assert newest(histories, bob) == NOBODY
    assert (sample(histories, "missing"), sample(histories, "absent"), histories.sequence) == (2, 5, -1)
    fetched(histories)
    check(histories, users_of(remote))
    assert (sample(histories, "missing"), histories.sequence) == (0, 1)
    newest(histories, "nobody")
    assert sample(histories, "absent") == 5


def test_a_new_commit_is_read_once_its_files_are_here(remote: Store, cache: LocalCache) -> None:
    write_window(remote, 0, [Event("ann", "a", T)])
    histories = following(remote, cache)
    fetched(histories)
    write_window(remote, 1, [Event("ann", "b", T + 1), Event("bob", "b", T + 1)])
    histories.catch_up()
    assert newest(histories, "ann") == [0, 0, 0, hash_id("a")]
    assert (seen(histories, "ann"), histories.sequence) == (({hash_id("a")}, False), 0)
    fetched(histories)
    check(histories, users_of(remote))
    assert histories.sequence == 1


def test_a_restart_finds_the_files_in_the_cache(remote: Store, cache: LocalCache) -> None:
    for _ in random_windows(remote, 2):
        pass
    users = users_of(remote)
    fetched(following(remote, cache))
    for name in remote.glob("histories/*/*"):
        remote.remove(name)
    histories = following(remote, cache)
    fetched(histories)
    check(histories, users)


def test_a_file_that_is_damaged_in_the_store_is_refused_by_name_and_the_others_come(
    remote: Store, cache: LocalCache
) -> None:
    ann, bob = of_shard(0), of_shard(1)
    write_window(remote, 0, [Event(ann, "a", T), Event(bob, "b", T)])
    [name] = remote.glob("histories/00000/*")
    remote.write(name, remote.read(name)[:-1] + b"\x01")
    histories = following(remote, cache)
    with pytest.raises(CorruptArtefactError, match=name):
        fetched(histories)
    assert newest(histories, bob) == [0, 0, 0, hash_id("b")]
    assert (newest(histories, ann), sample(histories, "missing")) == (NOBODY, 1)
    # It is not fetched again at once.
    fetched(histories)
    assert sample(histories, "missing") == 1


def test_merged_files_take_the_place_of_others_without_a_gap(remote: Store, cache: LocalCache) -> None:
    ann, bob = of_shard(0), of_shard(0, 1)
    write_window(remote, 0, [Event(ann, "a", T)])
    write_window(remote, 1, [Event(bob, "b", T + 1)])
    histories = following(remote, cache)
    fetched(histories)
    users = users_of(remote)
    replaced = tuple(remote.glob("histories/00000/*"))
    merged = write_file(remote, 0, "merged", {key: (user, user.seen) for key, user in users.items()})
    WindowLog(remote).commit(histories=(merged.model_copy(update={"replaces": replaced}),), covered=2)
    histories.catch_up()
    check(histories, users)
    write_window(remote, 2, [Event(ann, "c", T + 2)])
    histories.catch_up()
    [delta, base] = histories.due(large=False)
    assert (base.name, delta.rows) == (merged.name, 1)
    histories._files.fetch(delta)
    histories._open_newest()
    check(histories, users_of(remote))
    for name in replaced:
        remote.remove(name)
    fetched(histories)
    check(histories, users_of(remote))
    assert histories.sequence == 2


def test_a_cache_that_is_too_small_takes_what_fits(remote: Store, tmp_path: Path) -> None:
    ann, bob = of_shard(0), of_shard(1)
    write_window(remote, 0, [Event(ann, "a", T), Event(bob, "b", T)])
    size = max(file.size for file in following(remote, LocalCache(tmp_path / "whole")).due(large=False))
    histories = following(remote, LocalCache(tmp_path / "small", size + 1))
    fetched(histories)
    assert sample(histories, "missing") == 1
    assert sorted(newest(histories, user)[-1] == 0 for user in (ann, bob)) == [False, True]


def test_forgotten_users_are_unknown_once_the_new_files_are_here(remote: Store, cache: LocalCache) -> None:
    ann, bob = of_shard(0), of_shard(0, 1)
    write_window(remote, 0, [Event(ann, "a", T), Event(bob, "b", T)])
    histories = following(remote, cache)
    fetched(histories)
    [old] = remote.glob("histories/00000/*")
    users = users_of(remote)
    key = hash_id(bob)
    left = write_file(remote, 0, "left", {key: (users[key], users[key].seen)})
    WindowLog(remote).commit(
        forgets=1, histories=(left.model_copy(update={"replaces": (old,)}),), requires=("redaction",)
    )
    histories.catch_up()
    fetched(histories)
    assert (newest(histories, ann), seen(histories, ann)) == (NOBODY, (set(), False))
    assert newest(histories, bob) == [0, 0, 0, hash_id("b")]
    WindowLog(remote).commit(forgets=1, removed=(left.name,), requires=("redaction",))
    histories.catch_up()
    assert newest(histories, bob) == [0]
    kept = {path.name.partition("-")[2] for path in cache.folder.iterdir()}
    assert {name.rpartition("/")[2] for name in (old, left.name)} <= kept
    WindowLog(remote).commit(dropped=(old, left.name))
    histories.catch_up()
    assert not kept & {path.name.partition("-")[2] for path in cache.folder.iterdir()}


def file(name: str, size: int = 10, shard: int = 0) -> HistoryFile:
    return HistoryFile(name=name, size=size, checksum="", shard=shard, length=4)


def wanted(*shards: tuple[HistoryFile, ...]) -> HistoryFiles:
    return HistoryFiles(covered=1, shards=dict(enumerate(shards)))


@pytest.fixture
def remote_history_files(tmp_path: Path) -> Iterator[Store]:
    yield Store(f"memory://{tmp_path.name}")
    memory = fsspec.filesystem("memory")
    if memory.exists(f"/{tmp_path.name}"):
        memory.rm(f"/{tmp_path.name}", recursive=True)


def test_files_on_local_disk_are_all_here(store: Store) -> None:
    at_hand = FilesAtHand(store, LocalCache())
    files = wanted((file("a"), file("b", LARGE + 1)))
    assert (at_hand.missing(files), at_hand.due(files, large=False), at_hand.due(files, large=True)) == ([], [], [])


def test_the_newest_and_small_files_come_first_and_large_ones_have_their_lane(
    remote_history_files: Store, tmp_path: Path
) -> None:
    one = (file("base", LARGE + 1), file("mid", 50), file("new", 20))
    two = (file("base2", LARGE, 1), file("new2", 10, 1))
    at_hand = FilesAtHand(remote_history_files, LocalCache(tmp_path))
    files = wanted(one, two)
    assert [found.name for found in at_hand.missing(files)] == ["new2", "new", "mid", "base2", "base"]
    assert [found.name for found in at_hand.due(files, large=False)] == ["new2", "new", "mid", "base2"]
    assert [found.name for found in at_hand.due(files, large=True)] == ["base"]


def test_what_the_cache_has_no_room_for_is_not_due(remote_history_files: Store, tmp_path: Path) -> None:
    at_hand = FilesAtHand(remote_history_files, LocalCache(tmp_path, 100))
    files = wanted((file("base", 90), file("new", 20)))
    assert [found.name for found in at_hand.due(files, large=False)] == ["new"]
    stored = remote_history_files.write("new", b"x" * 20)
    at_hand.fetch(HistoryFile(**stored.model_dump(), shard=0, length=4))
    assert at_hand.due(files, large=False) == []
    assert [found.name for found in at_hand.due(wanted((file("base", 80), file("new", 20))), large=False)] == ["base"]


def test_a_file_that_failed_rests_before_it_is_tried_again(
    remote_history_files: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_hand = FilesAtHand(remote_history_files, LocalCache(tmp_path))
    files = wanted((file("lost"),))
    with pytest.raises(CorruptArtefactError, match="lost"):
        at_hand.fetch(file("lost"))
    assert (at_hand.due(files, large=False), len(at_hand.missing(files))) == ([], 1)
    monkeypatch.setattr(history_files.time, "monotonic", lambda: 1e12)
    assert [found.name for found in at_hand.due(files, large=False)] == ["lost"]


def test_names_of_files_out_of_use_are_forgotten(remote_history_files: Store, tmp_path: Path) -> None:
    at_hand = FilesAtHand(remote_history_files, LocalCache(tmp_path))
    for name in ("old", "new"):
        stored = remote_history_files.write(name, name.encode())
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
