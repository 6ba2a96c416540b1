"""Users' histories, looked up in the memory-mapped history files that the commits name.

For a new commit, only the files that it adds are mapped. Files of an object store are fetched in the background: until
all files of a user shard are available, look-ups read the available files, and users missing from them count as
unknown.
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

log = logging.getLogger(__name__)

Int64 = npt.NDArray[np.int64]

_Shards: TypeAlias = dict[int, tuple[HistoryFile, ...]]

LARGE: Final = 64 << 20
"""Bytes above which files are fetched by a separate thread, so that small files of new commits need not wait."""


class KnownUsers(NamedTuple):
    """The stored histories of n users.

    `items` (n, L) are each user's newest positive items, oldest first; unknown users have only padding. `seen` has all
    seen items of the users for whom they were requested; `seen.bounded` marks users whose seen items are incomplete,
    because not all are stored or available yet.
    """

    items: ItemKeys
    seen: SeenItems


class Histories(Protocol):
    """A source of user histories."""

    def look_up(self, users: UserKeys, asked: Int64) -> KnownUsers:
        """Look up users (n,); `asked` are the distinct positions of the users whose seen items are requested."""


def nothing_known(users: int, asked: int, *, bounded: bool = False) -> KnownUsers:
    """Return empty histories of `users` unknown users, and empty seen items of `asked` users.

    `bounded` marks these seen items as incomplete.
    """
    items = ItemKeys(np.full((users, 1), PADDING_KEY, np.int64))
    empty = ItemKeys(np.empty(0, np.int64))
    return KnownUsers(items, SeenItems(empty, np.zeros(asked + 1, np.int64), np.full(asked, bounded)))


_RETRY_SECONDS: Final = 30.0
"""Pause before a failed fetch is retried."""


@dataclass
class FilesAtHand:
    """Fetches history files and tracks which files are available locally.

    One thread may call `fetch` for small files, and another one for large files (`LARGE`).
    """

    store: Store
    cache: LocalCache
    _fetched: set[str] = field(default_factory=set, init=False, repr=False)
    _resting: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def has(self, file: HistoryFile) -> bool:
        """Return whether a file can be opened without a fetch."""
        return self.store.local_path is not None or file.name in self._fetched

    def missing(self, wanted: HistoryFiles) -> list[HistoryFile]:
        """Return the files that are not available: the newest file of each shard first, small before large files."""
        ages = [(age, file) for files in wanted.shards.values() for age, file in enumerate(reversed(files))]
        return [file for _, file in sorted(ages, key=_urgency) if not self.has(file)]

    def due(self, wanted: HistoryFiles, *, large: bool) -> list[HistoryFile]:
        """Return the missing large (or small) files that fit into the cache and whose fetch has not just failed."""
        room = self.cache.limit - sum(file.size for file in wanted.files if self.has(file))
        fitting, now = [], time.monotonic()
        for file in self.missing(wanted):
            room -= file.size
            if room >= 0 and now >= self._resting.get(file.name, now):
                fitting.append(file)
        return [file for file in fitting if (file.size > LARGE) == large]

    def fetch(self, file: HistoryFile) -> None:
        """Fetch a file into the cache; raises `CorruptArtefactError`, and the errors of the object store."""
        self._resting[file.name] = time.monotonic() + _RETRY_SECONDS
        self.cache.path(self.store, file)
        self._fetched.add(file.name)
        del self._resting[file.name]

    def forget_all_but(self, wanted: HistoryFiles) -> None:
        """Drop the recorded state of all files but the `wanted` ones."""
        names = {file.name for file in wanted.files}
        self._fetched &= names
        self._resting = {name: until for name, until in self._resting.items() if name in names}


def _urgency(file: tuple[int, HistoryFile]) -> tuple[int, int]:
    """Return the sort key of an (age in its shard, file) pair: new files first, of equal age small ones first."""
    age, entry = file
    return age, entry.size


def readable(
    before: tuple[HistoryFile, ...], wanted: tuple[HistoryFile, ...], has: Callable[[HistoryFile], bool]
) -> tuple[HistoryFile, ...]:
    """Return the files of a shard that look-ups read now, oldest first.

    `before` are the files read so far, `wanted` the files of the newest commit, and `has` tells which are available. If
    all wanted files are available, they are returned. Otherwise the files before stay, because a missing file may
    replace them, and the available wanted files are inserted in their order.
    """
    if all(map(has, wanted)):
        return wanted
    files, place = list(before), len(before)
    for file in reversed(wanted):
        if file in files:
            place = files.index(file)
        elif has(file):
            files.insert(place, file)
    return tuple(files)


class _Position(NamedTuple):
    """A position in the commit log, and the history files named up to there."""

    cursor: Cursor
    files: HistoryFiles


class _View(NamedTuple):
    """The reader of the open history files, and the numbers of the `partial` user shards, which lack a file."""

    reader: UserHistories
    partial: npt.NDArray[np.int64]

    def is_partial(self, users: UserKeys) -> npt.NDArray[np.bool_]:
        """Return a mask of the users (n,) in partial shards."""
        return np.isin(shards_of(users, self.reader.shards), self.partial)


class _Read(NamedTuple):
    """Records of n users: `totals` of positives (n,), newest `items` (n, L), and `seen` items."""

    totals: Int64
    items: ItemKeys
    seen: SeenItems


@dataclass
class FollowedHistories:
    """Follows the history files of a store, and looks users up in them.

    One thread calls `catch_up`, one calls `fetch` for small files and one for large files; any number of threads may
    call `look_up` meanwhile.
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

        Raises `CorruptArtefactError` for a damaged commit or file, after applying the earlier commits and the user
        shards without a damaged file.
        """
        try:
            self._follow()
        finally:
            self._open_newest()

    def due(self, *, large: bool) -> list[HistoryFile]:
        """Return the files to fetch now, in order: either the large or the small files."""
        return [] if self._position is None else self._files.due(self._position.files, large=large)

    def fetch(self, *, large: bool) -> None:
        """Fetch the missing large (or small) files one by one, and open each for look-ups at once.

        Raises the last error, after trying the other files.
        """
        failure = None
        # Checked again after each file: a commit may have added and replaced files meanwhile.
        while due := self.due(large=large):
            try:
                self._files.fetch(due[0])
                self._open_newest()
            except Exception as error:  # noqa: BLE001 - object stores have errors of their own, which are no OSErrors
                failure = error
        if failure is not None:
            raise failure

    def look_up(self, users: UserKeys, asked: Int64) -> KnownUsers:
        """Look up users (n,); `asked` are the distinct positions of the users whose seen items are requested."""
        view = self._view
        if view is None:
            return nothing_known(len(users), len(asked))
        records, incomplete = self._sound(view.reader, users, asked)
        if len(view.partial):
            is_partial = view.is_partial(users)
            self.metrics.absent.inc(int(((records.totals == 0) & is_partial).sum()))
            incomplete = incomplete | is_partial
        seen = records.seen._replace(bounded=records.seen.bounded | incomplete[asked])
        return KnownUsers(records.items, seen)

    def _follow(self) -> None:
        """Advance the position over the new commits."""
        if self._position is None:
            head = self._log.head()
            # Start from the newest snapshot only: a commit after it may be damaged.
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
        """Log once that the histories lack windows, and once that they are complete again.

        `windows` is the number of committed panes; the histories cover the first `covered` panes.
        """
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

    def _open_newest(self) -> None:
        """Open the newest available files for look-ups."""
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
        """Open the available files of `shards` for look-ups, and mark shards that lack one of `files` as partial."""
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
        """Set the metrics; once all `files` are read, also set `sequence`, the last pane that they cover."""
        missing = len(self._files.missing(files))
        self.metrics.missing.set(missing)
        self.metrics.rows.set(self._view.reader.rows if self._view else 0)
        if not missing and self._read == files.shards:
            self.sequence = files.covered - 1
            self.metrics.sequence.set(self.sequence)
            self._files.forget_all_but(files)

    def _sound(self, reader: UserHistories, users: UserKeys, asked: Int64) -> tuple[_Read, npt.NDArray[np.bool_]]:
        """Look up users; users with a damaged record count as unknown, and are marked in the returned mask (n,)."""
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
    form = read_format(store)
    if form is None or form.layout is None:
        problem = "names no user shards, but commits list their histories: restore it from a copy"
        raise CorruptArtefactError(store.path("STORE.json"), problem)
    return form.layout.user_shards


def _usable(reader: UserHistories, files: HistoryFiles, before: _Shards, wanted: _Shards) -> _Shards:
    """Open the `wanted` files shard by shard, and return the files in use.

    A shard with a damaged file keeps its files from `before`.
    """
    for shard, entries in wanted.items():
        attempt = before | {shard: entries}
        with suppress(CorruptArtefactError):
            reader.take_in(files.model_copy(update={"shards": attempt}))
            before = attempt
    return before


def _read(reader: UserHistories, users: UserKeys, asked: Int64) -> _Read:
    rows = reader.find(users)
    totals, items, _ = rows.records()
    return _Read(totals, items, rows.seen(asked))


def _is_damaged(reader: UserHistories, user: UserKeys) -> bool:
    """Return whether the record of a single user, (1,), is damaged."""
    try:
        _read(reader, user, np.arange(1))
    except CorruptArtefactError:
        return True
    return False
