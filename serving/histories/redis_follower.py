"""The follower that copies a store's histories to Redis: all users once, then the users of new commits.

A user's value always holds the whole history, so that writing a value twice changes nothing. The last block of users of
a commit is written in one transaction with the position: a killed follower resumes at the position. Each transaction
watches lease and position, so that only one of two followers can write.
"""

import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeAlias

import numpy as np
import redis
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from weir.contracts import (
    CommitLog,
    CorruptArtefactError,
    HistoryFile,
    HistoryFiles,
    LogState,
    RetiredError,
    Store,
    UserError,
    UserHistories,
    UserKeys,
)
from weir.contracts.commits.commit_log import LogMismatchError
from weir.contracts.histories.lookup import open_file
from weir.runtime.log_once import LogOnce
from weir.runtime.metrics_server import exposed
from weir.runtime.stopping import ended_by_signals
from weir.serving.histories.files import user_shards
from weir.serving.histories.redis_config import FollowerConfig
from weir.serving.histories.redis_database import (
    CHECKED,
    LEASE,
    POSITION,
    UNCOUNTED,
    Position,
    connect,
    encode,
    keys_of,
    place_of,
    strangers,
)

__all__ = ["LOADS", "Follower", "FollowerLostError", "FollowerMetrics", "follow"]

log = logging.getLogger(__name__)

Block: TypeAlias = tuple[UserKeys, list[bytes]]
"""Users, and the Redis value of each."""

LOADS = ("empty", "lost", "other-store", "gap", "length", "redaction")
"""Reasons to load all users: first load, lost keys, another store, retired commits, another L, users erased."""

OTHERS: Final = (LEASE, POSITION, CHECKED)
"""Redis keys that are not users."""


class FollowerMetrics:
    """Metrics of a follower: its lag behind the store, its writes and its errors."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.behind_commits = Gauge(
            "weir_history_follower_behind_commits", "Commits that are not in Redis yet.", registry=registry
        )
        self.checked = Gauge(
            "weir_history_follower_checked_timestamp_seconds",
            "When Redis was last known to hold all commits, Unix time.",
            registry=registry,
        )
        self.writes = Gauge("weir_history_follower_writes", "1 for the follower that writes.", registry=registry)
        self.users = Counter("weir_history_follower_users", "Users written to Redis.", registry=registry)
        self.loads = Counter(
            "weir_history_follower_loads", "Loads of all users, by reason.", ("reason",), registry=registry
        )
        for reason in LOADS:
            self.loads.labels(reason)
        self.errors = Counter(
            "weir_history_follower_errors",
            "Attempts that failed: Redis or the store did not answer.",
            registry=registry,
        )


class FollowerLostError(Exception):
    """A transaction was not applied, because another follower writes or Redis has lost the position."""


class _GapError(Exception):
    """Commits cannot be applied one by one, so all users must be loaded; `reason` is one of `LOADS`."""

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason


@dataclass
class Follower:
    """Copies a store's histories to Redis, by repeated calls of `step`; not thread-safe."""

    store: Store
    config: FollowerConfig
    metrics: FollowerMetrics
    _token: bytes = field(default_factory=lambda: secrets.token_hex(8).encode(), init=False, repr=False)
    _stored: bytes | None = field(default=None, init=False, repr=False)
    _keys: int = field(default=0, init=False, repr=False)
    _position: Position | None = field(default=None, init=False, repr=False)
    _files: HistoryFiles = field(default_factory=HistoryFiles, init=False, repr=False)
    _reader: UserHistories | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._redis = connect(self.config.redis, self.config.timeout_seconds)
        self._log = CommitLog(self.store)
        self._lease_ms = round(1000 * self.config.lease_seconds)

    def step(self) -> bool:
        """Bring Redis up to date with the store; return False if another follower holds the lease.

        Raises `redis.RedisError`, `FollowerLostError`, and the errors of reading the store.
        """
        if not self._holds_lease():
            self.metrics.writes.set(0)
            return False
        self.metrics.writes.set(1)
        reason = self._reason_to_load()
        if not reason:
            try:
                self._write_new()
            except _GapError as gap:
                log.warning("%s: all users are loaded again: %s", self.store.url, gap)
                reason = gap.reason
        if reason:
            self._load(reason)
        self._tidy()
        self._redis.set(CHECKED, time.time())
        self.metrics.behind_commits.set(0)
        self.metrics.checked.set_to_current_time()
        return True

    def release(self) -> None:
        """Give up the lease if this follower holds it, so that another follower can take over at once."""
        with self._redis.pipeline() as pipe:
            pipe.watch(LEASE)
            if pipe.get(LEASE) == self._token:
                pipe.multi()
                pipe.delete(LEASE)
                pipe.execute()

    def _holds_lease(self) -> bool:
        """Take or extend the lease; return whether this follower holds it."""
        if self._redis.set(LEASE, self._token, nx=True, px=self._lease_ms):
            return True
        # Only a hint: each transaction checks again.
        return self._redis.get(LEASE) == self._token and bool(self._redis.pexpire(LEASE, self._lease_ms))

    def _reason_to_load(self) -> str:
        """Return why all users must be loaded, one of `LOADS`; "" if Redis holds the histories up to its position."""
        data, before = self._redis.get(POSITION), self._stored
        self._stored = data
        if data is None:
            return "empty" if before is None else "lost"
        position = Position.model_validate_json(data)
        least_keys = max(position.keys, self._keys if data == before else 0)
        if self._redis.dbsize() - self._redis.exists(*OTHERS) < least_keys or self._evicted() != position.evicted:
            return "lost"
        if data == before:
            return ""
        try:
            state = LogState.open(self.store, stop=position.number)
        except (CorruptArtefactError, LogMismatchError, RetiredError):
            return "other-store"
        if (state.number + 1, state.cursor.checksum) != (position.number, position.checksum):
            return "other-store"
        self._position, self._files = position, state.histories
        return ""

    def _evicted(self) -> str:
        """Return Redis's run id and the number of keys evicted in this run; "" if there were none."""
        facts = self._redis.info()
        return f"{facts['run_id']} {facts['evicted_keys']}" if facts["evicted_keys"] else ""

    def _write_new(self) -> None:
        """Write the users of the commits after the position; raises `_GapError` if all users must be loaded."""
        position, files, news = self._position, self._files, list[HistoryFile]()
        assert position is not None  # noqa: S101 - for the type checker
        cursor = position.cursor
        try:
            while (step := self._log.next(cursor)) is not None:
                commit, cursor = step
                files = files.after(commit)
                if commit.forgets:
                    # The commit does not name the users: a complete load replaces everything in Redis.
                    raise _GapError("redaction", f"commit {commit.number} forgets users")
                # Replacement files hold no new events.
                news += [file for file in commit.histories if not file.replaces]
        except RetiredError as error:
            raise _GapError("gap", str(error)) from error
        except LogMismatchError as error:
            raise _GapError("other-store", str(error)) from error
        if cursor == position.cursor:
            return
        self.metrics.behind_commits.set(cursor.number - position.number)
        if position.covered and files.length != position.length:
            raise _GapError("length", f"records have {files.length} items, they had {position.length}")
        after = position.model_copy(
            update={
                "number": cursor.number,
                "sequence": cursor.sequence,
                "checksum": cursor.checksum,
                "covered": files.covered,
                "length": files.length or 1,
            }
        )
        try:
            touched = [block for entry in news for block in self._users(entry)]
            users = UserKeys(np.unique(np.concatenate([np.empty(0, np.int64), *touched])))
            self._write(self._blocks(files, [users]), after)
        except CorruptArtefactError as error:
            raise _GapError("gap", str(error)) from error
        self._files = files

    def _load(self, reason: str) -> None:
        """Write all users as a new generation, then switch the position to it."""
        self.metrics.loads.labels(reason).inc()
        state = LogState.open(self.store)
        files, cursor = state.histories, state.cursor
        before = None if self._stored is None else Position.model_validate_json(self._stored)
        self._remove_all_but([before.generation] if before else [])
        log.info("%s: loading %d rows of users: %s", self.store.url, sum(file.rows for file in files.files), reason)
        position = Position(
            generation=secrets.token_hex(4),
            number=cursor.number,
            sequence=cursor.sequence,
            checksum=cursor.checksum,
            covered=files.covered,
            length=files.length or 1,
        )
        users = (block for entry in files.files for block in self._users(entry))
        self._write(self._blocks(files, users), position)
        self._files = files

    def _tidy(self) -> None:
        """After a load, remove the users of other generations, and store the number of keys in the position."""
        position = self._position
        if position is not None and position.keys == UNCOUNTED:
            self._remove_all_but([position.generation])
            self._transact(None, position.generation, position.model_copy(update={"keys": 0}))

    def _remove_all_but(self, generations: Sequence[str]) -> None:
        """Remove the users of all but these generations from Redis."""
        gone = strangers(self._redis, generations)
        while keys := list(islice(gone, self.config.block_users)):
            self._redis.unlink(*keys)
            self._redis.pexpire(LEASE, self._lease_ms)

    def _users(self, entry: HistoryFile) -> Iterator[UserKeys]:
        """Yield the keys of the users in a history file, in blocks."""
        file = open_file(self.store, entry, self.config.cache)
        size = self.config.block_users
        yield from (file.users(start, start + size) for start in range(0, file.count, size))

    def _blocks(self, files: HistoryFiles, users: Iterable[UserKeys]) -> Iterator[Block]:
        """Yield `users` in blocks, each user with its value as of `files`."""
        if not files.shards:
            return
        if self._reader is None:
            self._reader = UserHistories(self.store, user_shards(self.store), self.config.cache)
        self._reader.take_in(files)
        size = self.config.block_users
        for keys in users:
            for start in range(0, len(keys), size):
                block = UserKeys(keys[start : start + size])
                yield block, encode(self._reader.find(block))

    def _write(self, blocks: Iterator[Block], after: Position) -> None:
        """Write blocks of users, the last one in one transaction with the position `after`."""
        block = next(blocks, None)
        while (following := next(blocks, None)) is not None:
            self._transact(block, after.generation)
            block = following
        self._transact(block, after.generation, after)

    def _transact(self, block: Block | None, generation: str, after: Position | None = None) -> None:
        """Write a block of users and, if given, the position `after` in one transaction; raises `FollowerLostError`."""
        users, values = block or (UserKeys(np.empty(0, np.int64)), [])
        with self._redis.pipeline() as pipe:
            pipe.watch(LEASE, POSITION)
            if pipe.mget(LEASE, POSITION) != [self._token, self._stored]:
                raise FollowerLostError("the lease or the position is another's")
            if after is not None and after.keys != UNCOUNTED:
                after = after.model_copy(
                    update={"keys": pipe.dbsize() - pipe.exists(*OTHERS), "evicted": self._evicted()}
                )
            pipe.multi()
            pipe.pexpire(LEASE, self._lease_ms)
            if values:
                pipe.mset(dict(zip(keys_of(generation, users), values, strict=True)))
            if after is not None:
                pipe.set(POSITION, data := after.model_dump_json().encode())
            pipe.dbsize()
            pipe.exists(*OTHERS)
            try:
                *_, everything, others = pipe.execute()
            except redis.WatchError:
                raise FollowerLostError("the lease or the position has become another's") from None
        self._keys = everything - others
        self.metrics.users.inc(len(users))
        if after is not None:
            self._position, self._stored = after, data


def follow(store: Store, config: FollowerConfig, *, forever: bool) -> None:
    """Bring Redis up to date with a store: once or, with `forever`, until SIGTERM or SIGINT.

    Failures are retried with `forever`. Otherwise `UserError` is raised if Redis fails or another follower writes.
    """
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    follower = Follower(store, config, FollowerMetrics(registry))
    if not forever:
        _once(follower)
        return
    with exposed(registry, config.metrics_host, config.metrics_port):
        _until_stopped(follower, config.poll_seconds)


def _once(follower: Follower) -> None:
    """Bring Redis up to date and give up the lease; raises `UserError`."""
    where = place_of(follower.config.redis)
    try:
        if not follower.step():
            raise UserError(f"another follower writes to Redis at {where}: it brings it up to date")
        follower.release()
    except (redis.RedisError, FollowerLostError) as error:
        raise UserError(f"Redis at {where}: {error}") from error


def _until_stopped(follower: Follower, poll_seconds: float) -> None:
    """Bring Redis up to date again and again until a signal arrives, then give up the lease."""
    once = LogOnce(log)
    with ended_by_signals() as stopped:
        while not stopped.is_set():
            try:
                follower.step()
                once.succeeded()
            except FollowerLostError as error:
                log.warning("%s: trying again", error)
            except Exception as error:  # noqa: BLE001 - Redis and object stores have errors of their own
                follower.metrics.errors.inc()
                once.failed(error, "Redis is not brought up to date, it is tried again")
            stopped.wait(poll_seconds)
    try:
        follower.release()
    except redis.RedisError:
        log.info("the lease could not be given back, it ends by itself")
