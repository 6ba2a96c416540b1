"""The histories of users from Redis: one read for each batch, answered within a timeout or not at all."""

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
    data: bytes
    position: Position


@dataclass
class SharedHistories:
    """Looks users up in Redis; `problem` says why they count as unknown, if they do.

    One thread calls `catch_up`, any number may call `look_up`. After a failure look-ups do not wait for Redis until
    `catch_up` has reached it again.
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
        """Read the position; what is wrong with it is the `problem`, and logged once."""
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
        """Return the position; what is missing or unreadable is the `problem`."""
        if data is None:
            self._fail(f"{self._where} holds no histories: is `weir histories --follow` running?")
            return None
        try:
            return _View(data, Position.model_validate_json(data))
        except ValidationError as error:
            self._fail(f"{self._where} holds a position that is none: {in_one_line(error)}")
            return None

    def _is_ours(self, position: Position) -> bool:
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
        self._view, self.problem = None, problem
        self.metrics.errors.inc()
        self._once.failed(OSError(problem), "users count as unknown")

    def look_up(self, users: UserKeys, asked: Int64) -> KnownUsers:
        """Return what is known of users, (n,), and what those at the rows `asked`, distinct, have seen."""
        # Twice where the histories have been loaded again meanwhile.
        while (view := self._view) is not None:
            try:
                data, *values = self._redis.mget([POSITION, *keys_of(view.position.generation, users)])
            except redis.RedisError as error:
                self._fail(f"{self._where} does not answer: {error}")
                break
            newer = view if data == view.data else self._read(data)
            if newer is not None and newer.position.generation == view.position.generation:
                return self._known(users, values, view.position.length, asked)
            self._view = newer
        self.metrics.unavailable.inc(len(users))
        return nothing_known(len(users), len(asked), bounded=True)

    def _known(self, users: UserKeys, values: list[bytes | None], length: int, asked: Int64) -> KnownUsers:
        items, seen, damaged = decode(users, values, length)
        if damaged.any():
            self.metrics.errors.inc()
            problem = f"values of {int(damaged.sum())} of {len(users)} users do not match their checksums"
            self._once.failed(OSError(f"{self._where}: {problem}"), "these users count as unknown")
        return KnownUsers(items, seen.take(asked))
