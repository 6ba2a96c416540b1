"""Against a real server: what it answers is what mapped files answer, whoever is killed and whatever is lost."""

import itertools
from typing import Any

import numpy as np
import pytest
import redis

from tests.serving.histories.redis_server import RedisServer
from tests.serving.histories.support import follower, loads, mapped, reader, said
from tests.serving.support import write_window
from tests.serving.users import Event, users_of, write_file
from weir.contracts import CommitLog, LogState, Store, UserKeys, WindowLog, hash_id
from weir.pipelines.config import PipelineConfig
from weir.pipelines.maintenance.erased_files import Forgotten
from weir.pipelines.maintenance.erasure import forget_users
from weir.serving.histories.redis_database import LEASE, POSITION, Position, keys_of, strangers
from weir.serving.histories.redis_follower import Follower, FollowerLostError

T = 1_700_000_000_000
USERS = [hash_id(f"user-{n}") for n in range(14)]


@pytest.fixture
def store(tmp_path: Any) -> Store:
    return Store(str(tmp_path / "store"))


def add_window(store: Store, sequence: int, seed: int = 0) -> None:
    random = np.random.default_rng([seed, sequence])
    events = [
        Event(f"user-{u}", f"item-{i}", T + 1000 * sequence + n, label=1 if sign else -1)
        for n, (u, i, sign) in enumerate(random.integers(0, (12, 30, 2), (25, 3)).tolist())
    ]
    write_window(store, sequence, events)


def check(store: Store, database: RedisServer) -> None:
    """Redis and mapped files say the same of everybody, in any order."""
    shared, files = reader(store, database.url), mapped(store)
    assert shared.problem == ""
    for users, asked in ((USERS, None), ([USERS[3], USERS[13], USERS[3], USERS[0]], [1, 3]), (USERS[:1], [])):
        assert said(shared, users, asked) == said(files, users, asked)
    assert shared.sequence == files.sequence


def test_redis_says_what_mapped_files_say_commit_after_commit(store: Store, database: RedisServer) -> None:
    one = follower(store, database.url)
    assert one.step()
    for sequence in range(8):
        add_window(store, sequence)
        if sequence % 3 != 1:
            one.step()
            check(store, database)
    assert loads(one) == {"empty": 1}


def test_a_commit_costs_the_users_that_it_touches(store: Store, database: RedisServer) -> None:
    for sequence in range(4):
        add_window(store, sequence)
    one = follower(store, database.url)
    one.step()
    before = one.metrics.users._value.get()
    write_window(store, 4, [Event("user-1", "late", T), Event("user-99", "b", T)])
    one.step()
    one.step()
    assert one.metrics.users._value.get() - before == 2
    check(store, database)


def test_merged_files_cost_nothing(store: Store, database: RedisServer) -> None:
    for sequence in range(2):
        add_window(store, sequence)
    one = follower(store, database.url)
    one.step()
    before = one.metrics.users._value.get()
    users = {key: (user, user.seen) for key, user in users_of(store).items() if key % 2 == 0}
    merged = write_file(store, 0, "merged", users)
    replaced = tuple(file.name for file in LogState.open(store).histories.shards[0])
    WindowLog(store).commit(histories=(merged.model_copy(update={"replaces": replaced}),), covered=2)
    one.step()
    assert one.metrics.users._value.get() == before
    check(store, database)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("loading", [True, False])
def test_killed_before_or_after_any_transaction_another_one_continues_exactly(
    store: Store, database: RedisServer, monkeypatch: pytest.MonkeyPatch, *, loading: bool
) -> None:
    add_window(store, 0)
    if not loading:
        follower(store, database.url).step()
    for sequence in range(1, 3):
        add_window(store, sequence)
    state = {key: database.client.dump(key) for key in database.client.keys("*") if key != LEASE}
    real, killed = Follower._transact, 0
    for stop, after in itertools.product(range(20), (False, True)):
        database.client.flushall()
        for key, dump in state.items():
            database.client.restore(key, 0, dump)
        left = [stop]

        def transact(self: Follower, *args: Any, left: list[int] = left, after: bool = after) -> None:
            left[0] -= 1
            if left[0] == -1 and not after:
                raise Killed
            real(self, *args)
            if left[0] == -1:
                raise Killed

        monkeypatch.setattr(Follower, "_transact", transact)
        try:
            follower(store, database.url).step()
            break
        except Killed:
            killed += 1
        monkeypatch.setattr(Follower, "_transact", real)
        database.client.delete(LEASE)  # it ends by itself
        heir = follower(store, database.url)
        heir.step()
        check(store, database)
        if not loading:
            assert loads(heir) == {}
        # Nothing is left of a load that was killed.
        assert len(database.client.keys("weir:u:*")) == len(users_of(store))
    assert killed > 5


def test_one_of_two_followers_writes_until_its_lease_ends(store: Store, database: RedisServer) -> None:
    add_window(store, 0)
    one, two = follower(store, database.url), follower(store, database.url)
    assert (one.step(), two.step()) == (True, False)
    one.release()
    add_window(store, 1)
    assert (two.step(), one.step()) == (True, False)
    assert loads(two) == {}
    check(store, database)


def test_one_that_comes_back_after_its_lease_changes_nothing(
    store: Store, database: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs between what it has read and what it writes; meanwhile another one goes on."""
    add_window(store, 0)
    one, two = follower(store, database.url), follower(store, database.url)
    one.step()
    add_window(store, 1)
    real = Follower._transact

    def hang(self: Follower, *args: Any) -> None:
        monkeypatch.setattr(Follower, "_transact", real)
        database.client.delete(LEASE)
        add_window(store, 2)
        assert two.step()
        real(self, *args)

    monkeypatch.setattr(Follower, "_transact", hang)
    with pytest.raises(FollowerLostError):
        one.step()
    check(store, database)
    assert loads(two) == {}


@pytest.mark.parametrize("loss", ["all", "position", "a user"])
def test_what_was_lost_is_loaded_again(store: Store, database: RedisServer, loss: str) -> None:
    for sequence in range(2):
        add_window(store, sequence)
    one = follower(store, database.url)
    one.step()
    one.step()
    if loss == "all":
        database.client.flushall()
    elif loss == "position":
        database.client.delete(POSITION)
    else:
        database.client.delete(database.client.keys("weir:u:*")[0])
    one.step()
    assert loads(one) == {"empty": 1, "lost": 1}
    check(store, database)


def test_evicted_users_are_noticed_though_new_ones_came(store: Store, tmp_path: Any) -> None:
    server = RedisServer(tmp_path, "--maxmemory-policy", "allkeys-random")
    try:
        for sequence in range(2):
            add_window(store, sequence)
        one = follower(store, server.url)
        one.step()
        one.step()
        server.client.config_set("maxmemory", 1)
        with pytest.raises(redis.ResponseError):  # it throws away all that it has, and that is not enough
            server.client.set("weir:u:other", b"x" * 100)
        server.client.config_set("maxmemory", 0)
        one.step()
        assert loads(one) == {"empty": 1, "lost": 1}
        check(store, server)
        one.step()
        assert loads(one) == {"empty": 1, "lost": 1}
    finally:
        server.stop()


def test_another_store_is_loaded_and_its_reader_is_told_before(
    store: Store, database: RedisServer, tmp_path: Any
) -> None:
    other = Store(str(tmp_path / "other"))
    for sequence in range(2):
        add_window(store, sequence)
        add_window(other, sequence, seed=1)
    follower(store, database.url, lease_seconds=0.05).step()
    stranger = reader(other, database.url)
    assert "another store" in stranger.problem
    assert said(stranger, USERS[:1]) == [[[]], [([], True)]]
    steady = reader(store, database.url)
    database.client.delete(LEASE)
    heir = follower(other, database.url)
    heir.step()
    assert loads(heir) == {"other-store": 1}
    check(other, database)
    stranger.catch_up()
    assert stranger.problem == ""
    steady.catch_up()
    assert "another store" in steady.problem


def test_a_log_that_ends_before_its_position_is_loaded_again_while_it_follows(
    store: Store, database: RedisServer
) -> None:
    for sequence in range(3):
        add_window(store, sequence)
    one = follower(store, database.url)
    one.step()
    store.remove("commits/HEAD")
    store.remove(CommitLog.name(2))
    one.step()
    assert loads(one) == {"empty": 1, "other-store": 1}
    check(store, database)
    add_window(store, 2, seed=7)
    one.step()
    check(store, database)


def test_files_that_are_gone_before_they_were_read_cost_a_load(store: Store, database: RedisServer) -> None:
    add_window(store, 0)
    one = follower(store, database.url)
    one.step()
    add_window(store, 1)
    users = users_of(store)
    delta = LogState.open(store).histories.shards
    merged = tuple(
        write_file(
            store, shard, "merged", {key: (user, user.seen) for key, user in users.items() if key % 2 == shard}
        ).model_copy(update={"replaces": tuple(file.name for file in files)})
        for shard, files in delta.items()
    )
    WindowLog(store).commit(histories=merged, covered=2)
    for files in delta.values():
        for file in files:
            store.remove(file.name)
    one.step()
    assert loads(one) == {"empty": 1, "gap": 1}
    check(store, database)


def test_forgotten_users_leave_redis(store: Store, database: RedisServer) -> None:
    for sequence in range(2):
        add_window(store, sequence)
    one = follower(store, database.url)
    one.step()
    report = forget_users(store, PipelineConfig(), Forgotten.of(["user-3"]))
    assert report.held == ("user-3",)
    assert one.step()
    assert loads(one) == {"empty": 1, "redaction": 1}
    check(store, database)
    generation = Position.model_validate_json(database.client.get(POSITION)).generation
    held, gone = (keys_of(generation, UserKeys(np.array([USERS[n]]))) for n in (4, 3))
    assert (database.client.exists(*held), database.client.exists(*gone)) == (1, 0)
    assert list(strangers(database.client, [generation])) == []


def test_the_position_is_of_the_store(store: Store, database: RedisServer) -> None:
    add_window(store, 0)
    follower(store, database.url).step()
    position = Position.model_validate_json(database.client.get(POSITION))
    state = LogState.open(store)
    assert position.cursor == state.cursor
    assert (position.covered, position.keys) == (1, len(users_of(store)))
