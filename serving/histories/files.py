"""The histories of users: the files that the commits name, mapped, never replayed.

A new commit only maps the files that it adds. Files of an object store are fetched in the background: until all files
of a user shard are available, look-ups read those that are, and users missing from them count as unknown.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from weir.contracts import (
    PADDING_KEY,
    CommitLog,
    CorruptArtefactError,
    HistoryFile,
    HistoryFiles,
    ItemKeys,
    LocalCache,
    LogState,
    SeenItems,
    Store,
    UserHistories,
    UserKeys,
    read_format,
    shards_of,
)
from weir.contracts.commits.commit_log import Cursor
from weir.runtime.log_once import LogOnce
from weir.serving.metrics import HistoryMetrics

__all__ = [
    "LARGE",
    "FilesAtHand",
    "FollowedHistories",
    "Histories",
    "KnownUsers",
    "nothing_known",
    "readable",
    "user_shards",
]


Int64 = npt.NDArray[np.int64]


class KnownUsers(NamedTuple):
    """Newest positives of n users, `items` (n, L), oldest first, and the `seen` items of the requested ones.

    Unknown users have only padding. `seen.bounded` marks users whose seen items are incomplete: not all stored, or not
    available yet.
    """

    items: ItemKeys
    seen: SeenItems


class Histories(Protocol):
    """A source of user histories."""

    def look_up(self, users: UserKeys, asked: Int64) -> KnownUsers:
        """Look up users (n,), and the seen items of those at the distinct positions `asked`."""


def nothing_known(users: int, asked: int, *, bounded: bool = False) -> KnownUsers:
    """Return empty records for `users` unknown users, and empty seen items for `asked` of them."""
    items = ItemKeys(np.full((users, 1), PADDING_KEY, np.int64))
    empty = ItemKeys(np.empty(0, np.int64))
    return KnownUsers(items, SeenItems(empty, np.zeros(asked + 1, np.int64), np.full(asked, bounded)))


LARGE: Final = 64 << 20
"""Bytes above which files have a fetch lane of their own, so that small files of new commits need not wait."""

_RETRY_SECONDS: Final = 30.0
"""Pause before a failed fetch is retried."""


@dataclass
class FilesAtHand:
    """Tracks which files are available locally; one thread per lane may call `fetch`."""

    store: Store
    cache: LocalCache
    _fetched: set[str] = field(default_factory=set, init=False, repr=False)
    _resting: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def has(self, file: HistoryFile) -> bool:
        """Return whether a file can be opened without a fetch."""
        return self.store.local_path is not None or file.name in self._fetched

    def missing(self, wanted: HistoryFiles) -> list[HistoryFile]:
        """Return the files to fetch, in order: the newest file of every shard first, small ones before large ones."""
        ages = [(age, file) for files in wanted.shards.values() for age, file in enumerate(reversed(files))]
        return [file for _, file in sorted(ages, key=_urgency) if not self.has(file)]

    def due(self, wanted: HistoryFiles, *, large: bool) -> list[HistoryFile]:
        """Return the missing files of a lane that fit into the cache and have not just failed."""
        room = self.cache.limit - sum(file.size for file in wanted.files if self.has(file))
        fitting, now = [], time.monotonic()
        for file in self.missing(wanted):
            room -= file.size
            if room >= 0 and now >= self._resting.get(file.name, now):
                fitting.append(file)
        return [file for file in fitting if (file.size > LARGE) == large]

    def fetch(self, file: HistoryFile) -> None:
        """Fetch a file; raises `CorruptArtefactError`, and what the object store raises."""
        self._resting[file.name] = time.monotonic() + _RETRY_SECONDS
        self.cache.path(self.store, file)
        self._fetched.add(file.name)
        del self._resting[file.name]

    def forget_all_but(self, wanted: HistoryFiles) -> None:
        """Drop the state of files that are no longer `wanted`."""
        names = {file.name for file in wanted.files}
        self._fetched &= names
        self._resting = {name: until for name, until in self._resting.items() if name in names}


def _urgency(file: tuple[int, HistoryFile]) -> tuple[int, int]:
    age, entry = file
    return age, entry.size


def readable(
    before: tuple[HistoryFile, ...], wanted: tuple[HistoryFile, ...], has: Callable[[HistoryFile], bool]
) -> tuple[HistoryFile, ...]:
    """Return the files of a shard that look-ups read, oldest first, given those read `before`.

    If all `wanted` files are available, these. Otherwise the files read before stay, as a missing one may replace
    them, and available new files are inserted in their order, the newest last.
    """
    if all(map(has, wanted)):
        return wanted
    found, place = list(before), len(before)
    for file in reversed(wanted):
        if file in found:
            place = found.index(file)
        elif has(file):
            found.insert(place, file)
    return tuple(found)


log = logging.getLogger(__name__)

_Shards: TypeAlias = dict[int, tuple[HistoryFile, ...]]


class _Position(NamedTuple):
    """A position in the commit log, and the history files as of it."""

    cursor: Cursor
    files: HistoryFiles


class _View(NamedTuple):
    """What look-ups read: the open files, and the `partial` user shards, some of whose files are still missing."""

    reader: UserHistories
    partial: npt.NDArray[np.int64]

    def is_partial(self, users: UserKeys) -> npt.NDArray[np.bool_]:
        return np.isin(shards_of(users, self.reader.shards), self.partial)


class _Read(NamedTuple):
    totals: Int64
    items: ItemKeys
    seen: SeenItems


@dataclass
class FollowedHistories:
    """Follows the history files of a store.

    One thread calls `catch_up`, one calls `fetch` for small files and one for large files; any number may call
    `look_up` meanwhile.
    """

    store: Store
    metrics: HistoryMetrics
    cache: LocalCache = field(default_factory=LocalCache)
    sequence: int = field(default=-1, init=False)
    _position: _Position | None = field(default=None, init=False, repr=False)
    _view: _View | None = field(default=None, init=False, repr=False)
    _read: _Shards = field(default_factory=dict, init=False, repr=False)
    _told: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        self._log = CommitLog(self.store)
        self._files = FilesAtHand(self.store, self.cache)
        self._lock = threading.Lock()
        self._once = LogOnce(log)

    def catch_up(self) -> None:
        """Read the commits since the last call; the first call reads the newest state.

        Raises `CorruptArtefactError` after applying what precedes a damaged commit, and all user shards without a
        damaged file.
        """
        try:
            self._follow()
        finally:
            self._take_in()

    def due(self, *, large: bool) -> list[HistoryFile]:
        """Return the files to fetch now, either the large or the small ones, in order."""
        return [] if self._position is None else self._files.due(self._position.files, large=large)

    def fetch(self, *, large: bool) -> None:
        """Fetch the missing files one by one, and read each as soon as it is available.

        Raises the last error, after trying the other files.
        """
        failure = None
        # Checked again after each file: a commit may have added and replaced files meanwhile.
        while due := self.due(large=large):
            try:
                self._files.fetch(due[0])
                self._take_in()
            except Exception as error:  # noqa: BLE001 - object stores have errors of their own, which are no OSErrors
                failure = error
        if failure is not None:
            raise failure

    def look_up(self, users: UserKeys, asked: Int64) -> KnownUsers:
        """Look up users (n,), and the seen items of those at the distinct positions `asked`."""
        view = self._view
        if view is None:
            return nothing_known(len(users), len(asked))
        found, damaged = self._sound(view.reader, users, asked)
        if len(view.partial):
            is_partial = view.is_partial(users)
            self.metrics.absent.inc(int(((found.totals == 0) & is_partial).sum()))
            damaged = damaged | is_partial
        seen = found.seen._replace(bounded=found.seen.bounded | damaged[asked])
        return KnownUsers(found.items, seen)

    def _follow(self) -> None:
        if self._position is None:
            head = self._log.head()
            # Only the newest snapshot: a commit after it may be damaged.
            snapshot = -1 if head is None or head.snapshot is None else head.snapshot
            state = LogState.open(self.store, stop=snapshot + 1)
            self._position = _Position(state.cursor, state.histories)
        cursor, files = self._position
        while (step := self._log.next(cursor)) is not None:
            commit, cursor = step
            files = files.after(commit)
            if self.store.local_path is None:
                self.cache.discard(commit.dropped)
            self._position = _Position(cursor, files)
        self._tell(cursor.sequence, files.covered)

    def _tell(self, windows: int, covered: int) -> None:
        """Log once that the store's histories lack windows, and once that they are complete again."""
        self.metrics.uncovered.set(windows - covered)
        if windows == covered:
            told = "histories hold all windows" if self._told else ""
        elif covered:
            told = "histories lack the newest windows: start `weir ingest` once"
        else:
            told = "histories are missing, users count as unknown: start `weir ingest` once"
        if told and told != self._told:
            log.log(logging.INFO if windows == covered else logging.WARNING, "%s: %s", self.store.url, told)
        self._told = told if windows != covered else ""

    def _take_in(self) -> None:
        """Switch look-ups to the newest available files."""
        with self._lock:
            if self._position is None:
                return
            files = self._position.files
            shards = {
                shard: found
                for shard, wanted in files.shards.items()
                if (found := readable(self._read.get(shard, ()), wanted, self._files.has))
            }
            try:
                # `shards` may become empty: the last file is removed when all users of a store were erased.
                if (files.shards or self._view is not None) and (self._view is None or shards != self._read):
                    self._open(files, shards)
            finally:
                self._measure(files)

    def _open(self, files: HistoryFiles, shards: _Shards) -> None:
        reader = self._view.reader if self._view else self._reader()
        was_whole = set() if self._view is None else self._read.keys() - set(self._view.partial.tolist())
        try:
            reader.take_in(files.model_copy(update={"shards": shards}))
            self._read = shards
        except CorruptArtefactError:
            self._read = _usable(reader, files, self._read, shards)
            raise
        finally:
            partial = [s for s, wanted in files.shards.items() if self._read.get(s) != wanted and s not in was_whole]
            self._view = _View(reader, np.array(partial, np.int64))

    def _reader(self) -> UserHistories:
        return UserHistories(self.store, user_shards(self.store), self.cache)

    def _measure(self, files: HistoryFiles) -> None:
        missing = len(self._files.missing(files))
        self.metrics.missing.set(missing)
        self.metrics.rows.set(self._view.reader.rows if self._view else 0)
        if not missing and self._read == files.shards:
            self.sequence = files.covered - 1
            self.metrics.sequence.set(self.sequence)
            self._files.forget_all_but(files)

    def _sound(self, reader: UserHistories, users: UserKeys, asked: Int64) -> tuple[_Read, npt.NDArray[np.bool_]]:
        """Look up users, those with damaged records as unknown; also return a mask of the damaged ones."""
        try:
            return _read(reader, users, asked), np.zeros(len(users), np.bool_)
        except CorruptArtefactError as error:
            self.metrics.errors.inc()
            self._once.failed(error, "users whose records are damaged count as unknown")
        damaged = np.array([_is_damaged(reader, UserKeys(users[row : row + 1])) for row in range(len(users))])
        # `PADDING_KEY` is not the key of any user.
        return _read(reader, UserKeys(np.where(damaged, PADDING_KEY, users)), asked), damaged


def user_shards(store: Store) -> int:
    """Return the number of user shards of a store with histories; raises `CorruptArtefactError`."""
    found = read_format(store)
    if found is None or found.layout is None:
        problem = "names no user shards, but commits list their histories: restore it from a copy"
        raise CorruptArtefactError(store.path("STORE.json"), problem)
    return found.layout.user_shards


def _usable(reader: UserHistories, files: HistoryFiles, before: _Shards, wanted: _Shards) -> _Shards:
    """Open shard by shard, and return the files in use: a shard with a damaged file stays as it was."""
    for shard, found in wanted.items():
        attempt = before | {shard: found}
        with suppress(CorruptArtefactError):
            reader.take_in(files.model_copy(update={"shards": attempt}))
            before = attempt
    return before


def _read(reader: UserHistories, users: UserKeys, asked: Int64) -> _Read:
    found = reader.find(users)
    totals, items, _ = found.records()
    return _Read(totals, items, found.seen(asked))


def _is_damaged(reader: UserHistories, user: UserKeys) -> bool:
    try:
        _read(reader, user, np.arange(1))
    except CorruptArtefactError:
        return True
    return False
