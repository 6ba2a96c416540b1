"""Users' histories from Redis: one read per batch, with a timeout."""

import logging
import time
from dataclasses import dataclass, field
from typing import NamedTuple

import redis
from pydantic import ValidationError

from weir.contracts import CommitLog, CorruptArtefactError, RetiredError, Store, UserKeys
from weir.contracts.base.errors import in_one_line
from weir.runtime.log_once import LogOnce
from weir.serving.histories.files import Int64, KnownUsers, nothing_known
from weir.serving.histories.redis_database import CHECKED, POSITION, Position, connect, decode, keys_of, place_of
from weir.serving.metrics import HistoryMetrics

__all__ = ["SharedHistories"]

log = logging.getLogger(__name__)


class _View(NamedTuple):
    """The position of the histories in Redis: as stored, in bytes, and decoded."""

    data: bytes
    position: Position


@dataclass
class SharedHistories:
    """Looks users up in Redis; while `problem` is not empty, all users count as unknown.

    One thread calls `catch_up`, any number of threads may call `look_up`. After a failure look-ups skip Redis until
    `catch_up` has succeeded.
    """

    store: Store
    metrics: HistoryMetrics
    url: str
    timeout: float
    sequence: int = field(default=-1, init=False)
    problem: str = field(default="not asked yet", init=False)
    _view: _View | None = field(default=None, init=False, repr=False)
    _checked: float = field(default=0.0, init=False, repr=False)
    _proved: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        self._redis = connect(self.url, self.timeout)
        self._where = f"Redis at {place_of(self.url)}"
        self._log = CommitLog(self.store)
        self._once = LogOnce(log)

    def catch_up(self) -> None:
        """Read the position of the histories in Redis; a failure sets `problem` and is logged once."""
        self._measure_age()
        try:
            data, checked = self._redis.mget([POSITION, CHECKED])
        except redis.RedisError as error:
            self._fail(f"{self._where} does not answer: {error}")
            return
        if (view := self._read(data)) is None:
            return
        position = view.position
        if position.checksum != self._proved and not self._is_ours(position):
            self._fail(f"{self._where} holds the histories of another store, or of this one before it was restored")
            return
        self._proved, self.sequence = position.checksum, position.covered - 1
        if self.problem:
            log.info("%s: users are known as of window %d", self._where, self.sequence)
        self._view, self.problem = view, ""
        self._once.succeeded()
        self._checked = float(checked or 0)
        self._measure_age()
        self._measure(position)

    def _read(self, data: bytes | None) -> _View | None:
        """Decode the stored position; if it is missing (None) or malformed, set `problem` and return None."""
        if data is None:
            self._fail(f"{self._where} holds no histories: is `weir histories --follow` running?")
            return None
        try:
            return _View(data, Position.model_validate_json(data))
        except ValidationError as error:
            self._fail(f"{self._where} holds a position that is none: {in_one_line(error)}")
            return None

    def _is_ours(self, position: Position) -> bool:
        """Return whether a position belongs to this store's commit log."""
        try:
            return self._log.at(position.number).checksum == position.checksum
        except (CorruptArtefactError, RetiredError):
            return False

    def _measure_age(self) -> None:
        if self._checked:
            self.metrics.behind_seconds.set(max(0.0, time.time() - self._checked))

    def _measure(self, position: Position) -> None:
        newest = self._log.head()
        self.metrics.sequence.set(self.sequence)
        self.metrics.rows.set(max(0, position.keys))
        self.metrics.uncovered.set(position.sequence - position.covered)
        self.metrics.behind_commits.set(max(0, newest.number + 1 - position.number) if newest else 0)

    def _fail(self, problem: str) -> None:
        """Count all users as unknown from now on, and log the problem once."""
        self._view, self.problem = None, problem
        self.metrics.errors.inc()
        self._once.failed(OSError(problem), "users count as unknown")

    def look_up(self, users: UserKeys, asked: Int64) -> KnownUsers:
        """Look up users (n,); `asked` are the distinct positions of the users whose seen items are requested."""
        # Repeats if the histories were loaded again meanwhile.
        while (view := self._view) is not None:
            try:
                data, *values = self._redis.mget([POSITION, *keys_of(view.position.generation, users)])
            except redis.RedisError as error:
                self._fail(f"{self._where} does not answer: {error}")
                break
            newer = view if data == view.data else self._read(data)
            if newer is not None and newer.position.generation == view.position.generation:
                return self._decoded(users, values, view.position.length, asked)
            self._view = newer
        self.metrics.unavailable.inc(len(users))
        return nothing_known(len(users), len(asked), bounded=True)

    def _decoded(self, users: UserKeys, values: list[bytes | None], length: int, asked: Int64) -> KnownUsers:
        """Decode users' values; damaged values are logged, and their users count as unknown."""
        items, seen, damaged = decode(users, values, length)
        if damaged.any():
            self.metrics.errors.inc()
            problem = f"values of {int(damaged.sum())} of {len(users)} users do not match their checksums"
            self._once.failed(OSError(f"{self._where}: {problem}"), "these users count as unknown")
        return KnownUsers(items, seen.take(asked))
