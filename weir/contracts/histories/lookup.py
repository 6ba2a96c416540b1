"""Look-ups of users in the history files that commits name.

A look-up reads from each file two entries of the prefix table, the keys near them, and the records or seen items. The
computation runs over all users and files of a batch together: a few users in many files cost a few slices per user and
file, and some dozens of numpy calls in all.

Opening reads only headers and copies nothing; the files of a commit cost what the commit adds. Readers use an immutable
version, so that one thread can take in commits while other threads look users up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np

from weir.contracts.base.errors import CorruptArtefactError
from weir.contracts.base.keys import ItemKeys, UserKeys, shards_of
from weir.contracts.commits.commit import HistoryFile, HistoryFiles
from weir.contracts.histories.user_file import DAMAGED_KEY, DAMAGED_ORDER, FEW, UserFile, prefixes_of
from weir.contracts.histories.user_rows import (
    Bool,
    FoundUsers,
    Int64,
    Records,
    SeenItems,
    join_segments,
    key_sums,
    record_sum,
    record_sums,
    seen_sum,
    seen_sums,
    segments,
    unknown_users,
)
from weir.contracts.storage.remote_files import LocalCache
from weir.contracts.storage.store import Store

__all__ = [
    "DAMAGED_HEAD",
    "DAMAGED_RECORD",
    "DAMAGED_SEEN",
    "FewUsers",
    "UserHistories",
    "UserTable",
    "open_file",
    "open_shard",
]

DAMAGED_RECORD: Final = "a record does not match its checksum"
DAMAGED_HEAD: Final = "the place of a user's seen items is damaged"
DAMAGED_SEEN: Final = "a user's seen items do not match their checksum"
Hits: TypeAlias = tuple[Int64, Int64, Int64]
"""For each hit: the row of the user, the place in the file, and the file's number; a user's oldest hit comes first."""
_BLOCK: Final = 1 << 11
"""Users to search for, or pieces to read, at a time: their pages are in memory."""
_MANY: Final = 1 << 9
"""From this number of pieces on, all pages are requested before the first read, and unmapped afterwards."""
_SINGLY: Final = 16
"""Up to this number of users, plain Python is faster than numpy."""
_PIECES: Final = 32
"""From this number of pieces per file on, one numpy call per file is faster than one slice per piece."""
_DENSE: Final = 8
"""All keys of a file are read if at least `_MANY` users, and one per `_DENSE` users of the file, are searched for."""
_WORD: Final = 4
"""Alignment in bytes of everything in a file."""
_ITEM: Final = 8
"""Bytes of a seen item."""
_FACTS: Final = ("shift", "count", "pairs", "ranges_at", "users_at", "rows_at", "heads_at", "items_at")
_NEAR: Final = np.arange(FEW)
_NOTHING: Final = np.empty(0, np.int64)
_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True)
class FewUsers:
    """Result of a look-up of few users (n,), which reads user by user.

    `_hits` are the files with a record of each user and the user's place in the file, oldest first; `_bounds` (n,) are
    the largest numbers of seen items.
    """

    users: UserKeys
    length: int
    _keys: Sequence[int]
    _hits: Sequence[list[tuple[UserFile, int]]]
    _bounds: Sequence[int]

    @classmethod
    def find(cls, files: Sequence[Sequence[UserFile]], length: int, users: UserKeys) -> "FewUsers":
        """Look users (n,) up, given the files of each shard; raises `CorruptArtefactError`."""
        keys: list[int] = users.tolist()
        hits, bounds = [], []
        for key in keys:
            mine = files[(key & _MASK) % len(files)]
            hits.append([(file, place) for file in mine if (place := file.place(key)) >= 0])
            bounds.append(mine[-1].bound if mine else 0)
        return cls(users, length, keys, hits, bounds)

    def records(self) -> Records:
        """Return the newest record of each user, (n,); unknown users have empty records."""
        found = unknown_users(len(self.users), self.length)
        for row, (key, hits) in enumerate(zip(self._keys, self._hits, strict=True)):
            if hits:
                file, place = hits[-1]
                values = file.row(place)
                if record_sum(key, values[1:]) != values[0]:
                    raise CorruptArtefactError(str(file.path), DAMAGED_RECORD)
                found.totals[row] = values[1]
                found.items[row], found.times[row] = values[2 : 2 + self.length], values[2 + self.length :]
        return found

    def seen(self, asked: Int64) -> SeenItems:
        """Return the seen items of the users at the rows `asked` (m,), at most the newest `_bounds` of each."""
        parts, offsets, bounded = [_NOTHING], [0], []
        for row in asked.tolist():
            mine, is_bounded = self._seen(row)
            excess = sum(map(len, mine)) - self._bounds[row]
            if excess > 0:
                mine = [np.concatenate(mine)[excess:]]
            parts += mine
            offsets.append(offsets[-1] + sum(map(len, mine)))
            bounded.append(is_bounded or excess > 0)
        return SeenItems(ItemKeys(np.concatenate(parts)), np.array(offsets), np.array(bounded, np.bool_))

    def _seen(self, row: int) -> tuple[list[Int64], bool]:
        """Return the seen items of a user by file, and whether older items were left out."""
        parts, is_bounded = [], False
        for file, place in self._hits[row]:
            start, bounded, expected, end = file.head(place)
            if not 0 <= start <= end <= file.pairs:
                raise CorruptArtefactError(str(file.path), DAMAGED_HEAD)
            items = file.items(start, end)
            if seen_sum(self._keys[row], start, bounded, items) != expected:
                raise CorruptArtefactError(str(file.path), DAMAGED_SEEN)
            parts.append(items)
            is_bounded |= bounded != 0
        return parts, is_bounded


@dataclass(frozen=True)
class UserTable:
    """Looks users up in open files, oldest first within a shard; `owners` (f,) are the shards of the files.

    There are `shards` shards, and records have `length` items. Any number of threads may read.
    """

    files: tuple[UserFile, ...]
    length: int
    owners: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    shards: int = 1

    @classmethod
    def of_shard(cls, files: tuple[UserFile, ...], length: int) -> "UserTable":
        """Return the table of the files of one shard."""
        return cls(files, length, np.zeros(len(files), np.int64))

    def find(self, users: UserKeys) -> FoundUsers:
        """Look up users (n,), in any order, repeated or not.

        Raises `CorruptArtefactError`, which names the file, if a key or the prefix table is damaged.
        """
        if len(users) <= _SINGLY:
            return FewUsers.find(self.by_shard, self.length, users)
        owner = shards_of(users, self.shards)
        held = np.bincount(owner, minlength=self.shards)[self.owners]
        is_dense = (held >= _MANY) & (_DENSE * held >= self.facts["count"])
        starts = range(0, len(users) if not is_dense.all() else 0, _BLOCK)
        parts = [self._find(users, owner, np.arange(len(users))[start : start + _BLOCK], ~is_dense) for start in starts]
        parts += [self._find_densely(users, owner, number) for number in np.flatnonzero(is_dense).tolist()]
        rows, places, numbers = (np.concatenate([_NOTHING, *(part[at] for part in parts)]) for at in range(3))
        order = np.argsort(numbers, kind="stable")
        return _ManyUsers(self, users, rows[order], places[order], numbers[order])

    def stretch(self, users: UserKeys, start: int) -> FoundUsers:
        """Return the result for `users` (n,) known to lie at consecutive places from `start` on in the one file."""
        rows = np.arange(len(users))
        return _ManyUsers(self, users, rows, start + rows, np.zeros(len(users), np.int64))

    def _find(self, users: UserKeys, owner: Int64, block: Int64, wanted: Bool) -> Hits:
        """Search the `wanted` (f,) files for the users at rows `block`; `owner` (n,) are the shards of all users."""
        held = np.bincount(owner[block], minlength=self.shards)
        counts = np.where(wanted, held[self.owners], 0)
        at, _ = segments((np.cumsum(held) - held)[self.owners], counts)
        rows = block[np.argsort(owner[block], kind="stable")][at]
        search = _Search(self, UserKeys(users[rows]), np.repeat(np.arange(len(self.files)), counts))
        places = search.places()
        hit = np.flatnonzero(places >= 0)
        return rows[hit], places[hit], search.numbers[hit]

    def _find_densely(self, users: UserKeys, owner: Int64, number: int) -> Hits:
        """Search all keys of a file for all users of its shard."""
        file = self.files[number]
        keys, rows = file.users(0, file.count), np.flatnonzero(owner == self.owners[number])
        if not (keys[1:] > keys[:-1]).all():
            raise CorruptArtefactError(str(file.path), DAMAGED_ORDER)
        places = np.searchsorted(keys, users[rows])
        hit = np.flatnonzero(keys[np.minimum(places, file.count - 1)] == users[rows])
        return rows[hit], places[hit], np.full(len(hit), number)

    def gather(self, numbers: Int64, starts: Int64, sizes: Int64 | int) -> bytes | memoryview:
        """Return the concatenated bytes of pieces: `sizes` bytes from `starts` (n,) on, of the files `numbers` (n,).

        Pieces of various sizes are seen items. The kernel maps a page with its 15 neighbours: to bound memory, many
        pieces are read block by block, and unmapped.
        """
        if len(numbers) < _MANY:
            return self._read(numbers, starts, sizes)
        self._read_ahead(numbers, starts, starts + sizes)
        if not isinstance(sizes, int):
            # Split into pieces of one item each.
            places, _ = segments(starts // _ITEM, sizes // _ITEM)
            numbers, starts, sizes = np.repeat(numbers, sizes // _ITEM), places * _ITEM, _ITEM
        found = np.empty(len(numbers), f"V{sizes}")
        for block in (slice(at, at + _BLOCK) for at in range(0, len(numbers), _BLOCK)):
            found[block] = np.frombuffer(self._read(numbers[block], starts[block], sizes), found.dtype)
            for number in np.flatnonzero(np.bincount(numbers[block])).tolist():
                self.files[number].release()
        return found.data.cast("B")

    def _read_ahead(self, numbers: Int64, starts: Int64, ends: Int64) -> None:
        """Ask the kernel for the pages of all pieces, bytes [starts, ends) (n,) of the files `numbers` (n,)."""
        for number, file in enumerate(self.files):
            mine = (numbers == number) & (starts < ends)
            if mine.any():
                file.read_ahead(starts[mine], ends[mine])

    def _read(self, numbers: Int64, starts: Int64, sizes: Int64 | int) -> bytes | memoryview:
        """Return the pieces, as slices of bytes or by one numpy call per file.

        The numpy call pays off for many pieces of one size per file.
        """
        if isinstance(sizes, int) and len(numbers) > _PIECES * len(self.files):
            return self._taken(numbers, starts, sizes)
        files = [file.data for file in self.files]
        pieces = zip(numbers.tolist(), starts.tolist(), (starts + sizes).tolist(), strict=True)
        return b"".join([files[number][start:stop] for number, start, stop in pieces])

    def _taken(self, numbers: Int64, starts: Int64, size: int) -> memoryview:
        """Return pieces of one size that start at multiples of four bytes."""
        found = np.empty(len(numbers), f"V{size}")
        order = np.argsort(numbers, kind="stable")
        edges = np.searchsorted(numbers[order], np.arange(len(self.files) + 1)).tolist()
        for file, start, stop in zip(self.files, edges, edges[1:], strict=False):
            if start < stop:
                # A strided view has a piece at every word of the file; overlapping pieces are not copied.
                count = (len(file.data) - size) // _WORD + 1
                pieces = np.ndarray((count,), found.dtype, file.data, strides=(_WORD,))
                found[order[start:stop]] = pieces[starts[order[start:stop]] // _WORD]
        return found.data.cast("B")

    def require(self, is_sound: Bool, numbers: Int64, problem: str) -> None:
        """Raise `CorruptArtefactError` for the first unsound element (n,); `numbers` (n,) are the files."""
        if not is_sound.all():
            raise CorruptArtefactError(str(self.files[numbers[np.argmin(is_sound)]].path), problem)

    @cached_property
    def by_shard(self) -> tuple[tuple[UserFile, ...], ...]:
        """The files of each shard, oldest first."""
        owners = self.owners.tolist()
        return tuple(
            tuple(file for owner, file in zip(owners, self.files, strict=True) if owner == shard)
            for shard in range(self.shards)
        )

    @cached_property
    def facts(self) -> dict[str, Int64]:
        """Attributes of the files by name, (f,) each."""
        return {name: np.array([getattr(file, name) for file in self.files], np.int64) for name in _FACTS}

    @cached_property
    def bounds(self) -> Int64:
        """The largest number of seen items of a user, (shards,), from the newest file of each shard."""
        found = np.zeros(self.shards, np.int64)
        for owner, file in zip(self.owners.tolist(), self.files, strict=True):
            found[owner] = file.bound
        return found


@dataclass(frozen=True)
class _Search:
    """Searches p pairs of a user and a file: ``users[i]`` in the file with number ``numbers[i]``; `numbers` ascend."""

    table: UserTable
    users: UserKeys
    numbers: Int64

    def places(self) -> Int64:
        """Return the place of each user in its file, -1 where it is absent."""
        count = self._fact("count")
        low, high = self._bounds(count)
        # Read from the key before on: a section precedes the users', and more than a page follows them.
        near = self._near(low - 1, FEW + 2)
        pairs, keys = np.arange(len(low)), near[:, :, 0]
        within = ((keys[:, 1:-1] < self.users[:, None]) & ((high - low)[:, None] > _NEAR)).sum(axis=1)
        place = low + within
        here, ahead = near[pairs, within + 1], near[pairs, within]
        at_end, at_start = place == count, place == 0
        # The neighbours prove that the place is right, or the user absent.
        is_sound = (at_end | (key_sums(here[:, 0]) == here[:, 1])) & (at_start | (key_sums(ahead[:, 0]) == ahead[:, 1]))
        self.table.require(is_sound, self.numbers, DAMAGED_KEY)
        is_sound = (at_end | (here[:, 0] >= self.users)) & (at_start | (ahead[:, 0] < self.users))
        self.table.require(is_sound, self.numbers, DAMAGED_ORDER)
        return np.where(~at_end & (here[:, 0] == self.users), place, -1)

    def _bounds(self, count: Int64) -> tuple[Int64, Int64]:
        """Return the first and the last possible place of each user, at most `FEW` apart."""
        at = self._fact("ranges_at") + 4 * prefixes_of(self.users, self._fact("shift").view(np.uint64))
        ranges = np.frombuffer(self.table.gather(self.numbers, at, 8), np.uint32).reshape(-1, 2)
        low, high = np.minimum(ranges.T, count).astype(np.int64)
        # A prefix has few users unless keys are badly distributed; then its range is bisected first.
        while len(wide := np.flatnonzero(high - low > FEW)):
            middle = (low[wide] + high[wide]) >> 1
            user, key = self.users[wide], self._select(wide)._near(middle, 1)[:, 0, 0]
            low[wide], high[wide] = np.where(key < user, (middle + 1, high[wide]), (low[wide], middle))
        return low, high

    def _near(self, places: Int64, count: int) -> Int64:
        """Return `count` keys with their checksums from each place on, (p, count, 2)."""
        data = self.table.gather(self.numbers, self._fact("users_at") + 16 * places, 16 * count)
        return np.frombuffer(data, np.int64).reshape(-1, count, 2)

    def _fact(self, name: str) -> Int64:
        return self.table.facts[name][self.numbers]

    def _select(self, pairs: Int64) -> "_Search":
        return _Search(self.table, UserKeys(self.users[pairs]), self.numbers[pairs])


@dataclass(frozen=True)
class _ManyUsers:
    """Result of a look-up of many users (n,), which reads all users and files together.

    Each of h hits, the oldest of a user first, has the row of the user, the place in the file, and the file's number.
    """

    table: UserTable
    users: UserKeys
    _rows: Int64
    _places: Int64
    _numbers: Int64

    def records(self) -> Records:
        """Return the newest record of each user, (n,); unknown users have empty records."""
        found = unknown_users(len(self.users), self.table.length)
        newest = np.full(len(self.users), -1)
        newest[self._rows] = np.arange(len(self._rows))  # the last of repeated indices wins
        hits = newest[newest >= 0]
        rows, numbers = self._rows[hits], self._numbers[hits]
        width = 2 + 2 * self.table.length
        at = self.table.facts["rows_at"][numbers] + 8 * width * self._places[hits]
        values = np.frombuffer(self.table.gather(numbers, at, 8 * width), np.int64).reshape(-1, width)
        is_sound = record_sums(self.users[rows], values[:, 1:]) == values[:, 0]
        self.table.require(is_sound, numbers, DAMAGED_RECORD)
        items = 2 + self.table.length
        found.totals[rows], found.items[rows], found.times[rows] = values[:, 1], values[:, 2:items], values[:, items:]
        return found

    def seen(self, asked: Int64) -> SeenItems:
        """Return the seen items of the users at the distinct rows `asked` (m,), up to the bounds of their shards."""
        number_of = np.full(len(self.users), -1)
        number_of[asked] = np.arange(len(asked))
        hits = np.flatnonzero(number_of[self._rows] >= 0)
        bounds = self.table.bounds[shards_of(UserKeys(self.users[asked]), self.table.shards)]
        return join_segments(self._parts(hits), number_of[self._rows[hits]], bounds)

    def _parts(self, hits: Int64) -> SeenItems:
        """Read and verify the seen items of hits (h,), given by index; raises `CorruptArtefactError`."""
        numbers = self._numbers[hits]
        at = self.table.facts["heads_at"][numbers] + 24 * self._places[hits]
        starts, bounded, sums, ends = np.frombuffer(self.table.gather(numbers, at, 32), np.int64).reshape(-1, 4).T
        is_sound = (starts >= 0) & (starts <= ends) & (ends <= self.table.facts["pairs"][numbers])
        self.table.require(is_sound, numbers, DAMAGED_HEAD)
        counts = ends - starts
        at = self.table.facts["items_at"][numbers] + 8 * starts
        items = np.frombuffer(self.table.gather(numbers, at, 8 * counts), np.int64)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        is_sound = seen_sums(self.users[self._rows[hits]], starts, bounded, items, offsets) == sums
        self.table.require(is_sound, numbers, DAMAGED_SEEN)
        return SeenItems(ItemKeys(items), offsets, bounded != 0)


_Opened: TypeAlias = dict[str, UserFile]


def open_file(store: Store, entry: HistoryFile, cache: LocalCache, *, in_order: bool = False) -> UserFile:
    """Open a file that a commit lists; `in_order` announces that it will be read as a whole.

    Raises `CorruptArtefactError` if the file is missing or does not match its entry.
    """
    file = UserFile(cache.path(store, entry), entry.name, in_order=in_order)
    if (file.count, file.length) != (entry.rows, entry.length):
        problem = (
            f"has {file.count} users with {file.length} items each, its commit says {entry.rows} with {entry.length}"
        )
        raise CorruptArtefactError(str(file.path), problem)
    return file


def open_shard(store: Store, files: HistoryFiles, shard: int, length: int, cache: LocalCache) -> UserTable:
    """Open the history files of one user shard, with records of `length` items; raises `CorruptArtefactError`."""
    opened = tuple(open_file(store, entry, cache) for entry in files.shards.get(shard, ()))
    return UserTable.of_shard(opened, length)


@dataclass
class UserHistories:
    """Looks users up in all history files of a store with `shards` user shards; `take_in` switches to newer files."""

    store: Store
    shards: int
    cache: LocalCache = field(default_factory=LocalCache)
    _opened: _Opened = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._table = UserTable((), 1)

    def take_in(self, files: HistoryFiles) -> None:
        """Switch to the given files, and open the new ones.

        Catch up with all commits first (`LogState.catch_up`): files that were replaced long ago are gone. Raises
        `CorruptArtefactError` and keeps the version before.
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
        """The number of items of a record; 1 without files."""
        return self._table.length

    @property
    def rows(self) -> int:
        """The number of rows of all files; a user has one row per file with some of its history."""
        return sum(file.count for file in self._table.files)

    def find(self, users: UserKeys) -> FoundUsers:
        """Look up users (n,), in any order; raises `CorruptArtefactError`."""
        return self._table.find(users)
