"""One reader of histories for pipeline, server and monitor: the files that the commits name, mapped.

Nothing is read at the start, nothing is copied, and taking in a commit costs what it adds. Readers work on a version
that never changes, so that one thread can take in commits while any number look users up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from contracts.errors import CorruptArtefactError
from contracts.history_files import HistoryFile, HistoryFiles
from contracts.keys import UserKeys, shards_of
from contracts.local_cache import LocalCache
from contracts.storage import Store
from contracts.user_file import UserFile
from contracts.user_rows import Int64, Records, SeenItems, join, nothing_seen, spread, unite, unknown_users

__all__ = ["ShardHistories", "UserHistories", "open_file", "open_shard"]


class _Opened(NamedTuple):
    entry: HistoryFile
    file: UserFile


_Version: TypeAlias = Mapping[int, tuple[_Opened, ...]]


@dataclass(frozen=True)
class ShardHistories:
    """The files of one user shard, oldest first."""

    files: tuple[UserFile, ...]
    length: int

    def lookup(self, users: UserKeys) -> Records:
        """Return the records of users, (n,): of each the one in the newest file that has it."""
        found = unknown_users(len(users), self.length)
        left = np.arange(len(users))
        for file in reversed(self.files):
            places = file.find(UserKeys(users[left]))
            hit = places >= 0
            if hit.any():
                for column, values in zip(found, file.records(places[hit]), strict=True):
                    column[left[hit]] = values
                left = left[~hit]
            if not len(left):
                break
        return found

    def seen(self, users: UserKeys) -> SeenItems:
        """Return what users have seen: the union over all files, bounded as the newest one says."""
        parts = [_seen(file, users) for file in self.files]
        return unite(parts, self.files[-1].bound) if parts else nothing_seen(len(users))


def _seen(file: UserFile, users: UserKeys) -> SeenItems:
    places = file.find(users)
    hit = np.flatnonzero(places >= 0)
    return spread(file.seen(places[hit]), hit, len(users))


def open_file(store: Store, entry: HistoryFile, cache: LocalCache, *, in_order: bool = False) -> UserFile:
    """Return a file that a commit lists; `in_order` says that it will be read as a whole.

    Raises `CorruptArtefactError` for one that is missing, or not the one that is listed.
    """
    file = UserFile(cache.path(store, entry), entry.name, in_order=in_order)
    if (file.count, file.length) != (entry.rows, entry.length):
        problem = (
            f"has {file.count} users with {file.length} items each, its commit says {entry.rows} with {entry.length}"
        )
        raise CorruptArtefactError(str(file.path), problem)
    return file


def open_shard(store: Store, files: HistoryFiles, shard: int, length: int, cache: LocalCache) -> ShardHistories:
    """Return the histories of one shard, with records of so many items; raises `CorruptArtefactError`."""
    opened = tuple(open_file(store, entry, cache) for entry in files.shards.get(shard, ()))
    return ShardHistories(opened, length)


@dataclass
class UserHistories:
    """The histories of a store's users, by shard; `shards` is the number of user shards of its layout."""

    store: Store
    shards: int
    cache: LocalCache = field(default_factory=LocalCache)
    _version: _Version = field(default_factory=dict, init=False, repr=False)

    def take_in(self, files: HistoryFiles) -> None:
        """Show the given files from now on; opens those that are new.

        Catch up with all commits first (`LogState.catch_up`): files that were replaced long ago are gone. Raises
        `CorruptArtefactError`; then the version before stays.
        """
        known = self._version
        self._version = {shard: self._open(known.get(shard, ()), entries) for shard, entries in files.shards.items()}

    def _open(self, known: tuple[_Opened, ...], entries: tuple[HistoryFile, ...]) -> tuple[_Opened, ...]:
        if [one.entry.name for one in known] == [entry.name for entry in entries]:
            return known
        opened = {one.entry.name: one for one in known}
        return tuple(
            opened.get(entry.name) or _Opened(entry, open_file(self.store, entry, self.cache)) for entry in entries
        )

    @property
    def length(self) -> int:
        """The number of items of a record, 1 without files."""
        return _length(self._version)

    @property
    def rows(self) -> int:
        """The number of rows of all files: a user has one in each file that holds something of it."""
        return sum(one.file.count for files in self._version.values() for one in files)

    def lookup(self, users: UserKeys) -> Records:
        """Return the records of users, (n,), in any order; padding and a total of 0 for those unknown.

        Raises `CorruptArtefactError`.
        """
        version = self._version
        length = _length(version)
        found = unknown_users(len(users), length)
        for rows, shard in self._by_shard(version, users, length):
            for column, values in zip(found, shard.lookup(UserKeys(users[rows])), strict=True):
                column[rows] = values
        return found

    def seen(self, users: UserKeys) -> SeenItems:
        """Return what users, (n,), have seen, in their order; raises `CorruptArtefactError`."""
        version = self._version
        parts = [(rows, shard.seen(UserKeys(users[rows]))) for rows, shard in self._by_shard(version, users, 1)]
        return _in_order(len(users), parts)

    def _by_shard(self, version: _Version, users: UserKeys, length: int) -> list[tuple[Int64, ShardHistories]]:
        owners = shards_of(users, self.shards)
        return [
            (np.flatnonzero(owners == shard), ShardHistories(tuple(one.file for one in version[shard]), length))
            for shard in np.unique(owners).tolist()
            if shard in version
        ]


def _length(version: _Version) -> int:
    return next((files[0].file.length for files in version.values()), 1)


def _in_order(users: int, parts: list[tuple[Int64, SeenItems]]) -> SeenItems:
    """Return the sets of all users from those of the shards, each with the rows of its users."""
    rest = np.setdiff1d(np.arange(users), np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in parts)]))
    parts = [*parts, (rest, nothing_seen(len(rest)))]
    return join([part for _, part in parts]).take(np.argsort(np.concatenate([rows for rows, _ in parts])))
