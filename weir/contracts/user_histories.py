"""One reader of histories for pipeline, server and monitor: the files that the commits name, mapped.

Nothing is read at the start, nothing is copied, and taking in a commit costs what it adds. Readers work on a version
that never changes, so that one thread can take in commits while any number look users up.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from weir.contracts.errors import CorruptArtefactError
from weir.contracts.history_files import HistoryFile, HistoryFiles
from weir.contracts.keys import UserKeys
from weir.contracts.local_cache import LocalCache
from weir.contracts.storage import Store
from weir.contracts.user_file import UserFile
from weir.contracts.user_lookup import UserTable
from weir.contracts.user_rows import FoundUsers

__all__ = ["UserHistories", "open_file", "open_shard"]


_Opened: TypeAlias = dict[str, UserFile]


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


def open_shard(store: Store, files: HistoryFiles, shard: int, length: int, cache: LocalCache) -> UserTable:
    """Return the histories of one shard, with records of so many items; raises `CorruptArtefactError`."""
    opened = tuple(open_file(store, entry, cache) for entry in files.shards.get(shard, ()))
    return UserTable.of_shard(opened, length)


@dataclass
class UserHistories:
    """The histories of a store's users, by shard; `shards` is the number of user shards of its layout."""

    store: Store
    shards: int
    cache: LocalCache = field(default_factory=LocalCache)
    _opened: _Opened = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._table = UserTable((), 1)

    def take_in(self, files: HistoryFiles) -> None:
        """Show the given files from now on; opens those that are new.

        Catch up with all commits first (`LogState.catch_up`): files that were replaced long ago are gone. Raises
        `CorruptArtefactError`; then the version before stays.
        """
        opened = {
            entry.name: self._opened.get(entry.name) or open_file(self.store, entry, self.cache)
            for entry in files.files
        }
        owners = np.array([entry.shard for entry in files.files], np.int64)
        self._table = UserTable(tuple(opened.values()), files.length or 1, owners, self.shards)
        self._opened = opened

    @property
    def length(self) -> int:
        """The number of items of a record, 1 without files."""
        return self._table.length

    @property
    def rows(self) -> int:
        """The number of rows of all files: a user has one in each file that holds something of it."""
        return sum(file.count for file in self._table.files)

    def find(self, users: UserKeys) -> FoundUsers:
        """Return where users, (n,), are, in any order; raises `CorruptArtefactError`."""
        return self._table.find(users)
