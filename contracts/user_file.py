"""A file of users: immutable, sorted by key, mapped; a look-up reads a few pages whatever the size of the file.

Sections, each at a multiple of 4096 bytes, little-endian:

- header: magic, version, counts, and the checksum of these;
- starts: uint32 (2^bits + 1,), the number of users whose key is below each prefix of `bits` bits;
- users: int64 (n, 2), keys in ascending order, each with its checksum;
- records: int64 (n, 2 + 2L), [checksum, positives ever seen, L items, L times]: one block is one user;
- seen: int64 (n + 1, 3), [start of the user's items, whether older ones were left out, checksum];
- items: int64 (m,), the seen items.

Opening verifies the header and the size, and reads nothing else. Every row is verified when it is read.
"""

import mmap
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from contracts.errors import CorruptArtefactError
from contracts.keys import ItemKeys, UserKeys
from contracts.storage import FileEntry, Store
from contracts.user_rows import Int64, Records, SeenItems, UserRows, key_sums, record_sums, seen_sums, segments

__all__ = ["UserFile", "write_user_file"]

_MAGIC: Final = b"WEIRUSER"
_VERSION: Final = 1
_PAGE: Final = 4096
_FIELDS: Final = struct.Struct("<8s7q")
_SUM: Final = struct.Struct("<Q")
_FEW: Final = 8
_NEXT: Final = np.arange(_FEW)
_SIGN: Final = np.uint64(1 << 63)


class _Header(NamedTuple):
    """`users` n, `length` L, `seen` m, `bound` of the seen items of a user, `bits` of a prefix, hash of the `name`."""

    users: int
    length: int
    seen: int
    bound: int
    bits: int
    name: int

    @property
    def width(self) -> int:
        return 2 + 2 * self.length

    @property
    def sections(self) -> list[int]:
        """Where starts, users, records, seen and items begin, and where the file ends."""
        words = (2 * self.users, self.width * self.users, 3 * (self.users + 1), self.seen)
        at, found = _PAGE, []
        for size in (4 * ((1 << self.bits) + 1), *(8 * count for count in words)):
            found.append(at)
            at += -(-size // _PAGE) * _PAGE
        return [*found, at]

    def encode(self) -> bytes:
        fields = _FIELDS.pack(_MAGIC, _VERSION, *self)
        return fields + _SUM.pack(xxhash.xxh3_64_intdigest(fields))

    @classmethod
    def decode(cls, path: str, data: bytes) -> "_Header":
        if len(data) < _PAGE:
            raise CorruptArtefactError(path, f"has {len(data)} bytes: too short for a file of users")
        magic, version, *fields = _FIELDS.unpack_from(data)
        if magic != _MAGIC:
            raise CorruptArtefactError(path, f"begins with {magic!r}, expected {_MAGIC!r}: it is no file of users")
        if _SUM.unpack_from(data, _FIELDS.size) != (xxhash.xxh3_64_intdigest(data[: _FIELDS.size]),):
            raise CorruptArtefactError(path, "its header does not match its checksum")
        if version != _VERSION:
            raise CorruptArtefactError(path, f"has version {version}, this software reads {_VERSION}: upgrade weir")
        return cls(*fields)


class UserFile:
    """An open file of users; any number of threads may read it.

    `name` is the one under which it was written, unless that is the path's; with `in_order` it is read as a whole.
    Raises `CorruptArtefactError`, which names the file, where it is not what was written.
    """

    def __init__(self, path: Path, name: str = "", *, in_order: bool = False) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                data: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise CorruptArtefactError(str(path), "a commit lists it, but it is missing") from None
        except ValueError:
            raise CorruptArtefactError(str(path), "is empty") from None
        data.madvise(mmap.MADV_SEQUENTIAL if in_order else mmap.MADV_RANDOM)
        header = _Header.decode(str(path), data[:_PAGE])
        *_, size = sections = header.sections
        if len(data) != size:
            raise CorruptArtefactError(str(path), f"has {len(data)} bytes, its header says {size}")
        if header.name != _hash_of(name or path.name):
            raise CorruptArtefactError(str(path), "was written under another name: it was put in the place of another")
        self.count, self.length, self.bound = header.users, header.length, header.bound
        self._shift = np.uint64(64 - header.bits)
        self._starts = np.frombuffer(data, np.uint32, (1 << header.bits) + 1, sections[0])
        self._users = np.frombuffer(data, np.int64, 2 * self.count, sections[1]).reshape(-1, 2)
        self._records = np.frombuffer(data, np.int64, header.width * self.count, sections[2]).reshape(self.count, -1)
        self._seen = np.frombuffer(data, np.int64, 3 * (self.count + 1), sections[3]).reshape(-1, 3)
        self._items = np.frombuffer(data, np.int64, header.seen, sections[4])

    def find(self, users: UserKeys) -> Int64:
        """Return the place of each user, (n,), -1 for those whom the file does not hold."""
        bucket = _prefix(users, self._shift)
        low, high = (np.minimum(self._starts[at], self.count).astype(np.int64) for at in (bucket, bucket + 1))
        # A bucket holds few users, unless keys are badly distributed: then it is halved first.
        while (high - low).max(initial=0) > _FEW:
            middle = np.minimum((low + high) >> 1, self.count - 1)
            is_right = self._users[middle, 0] < users
            low, high = np.where(is_right, np.minimum(middle + 1, high), low), np.where(is_right, high, middle)
        near = np.minimum(low[:, None] + _NEXT, self.count - 1)
        return self._proved(users, np.minimum(low + (self._users[near, 0] < users[:, None]).sum(axis=1), self.count))

    def _proved(self, users: UserKeys, place: Int64) -> Int64:
        """Return the places that hold their user; its neighbours prove that the place is right, or a user absent."""
        at, before = np.minimum(place, self.count - 1), np.maximum(place - 1, 0)
        ends = self._users[np.concatenate([at, before])]
        self._require(np.array_equal(key_sums(ends[:, 0]), ends[:, 1]), "a key of a user is damaged")
        here, ahead = ends[: len(at), 0], ends[len(at) :, 0]
        in_order = ((place == self.count) | (here >= users)) & ((place == 0) | (ahead < users))
        self._require(bool(in_order.all()), "its prefix table, or the order of its users, is damaged")
        return np.where((place < self.count) & (here == users), place, -1)

    def users(self, start: int, stop: int) -> UserKeys:
        """Return the keys from one place to another, ascending."""
        found = self._users[start:stop]
        self._require(np.array_equal(key_sums(found[:, 0]), found[:, 1]), "a key of a user is damaged")
        return UserKeys(found[:, 0])

    def records(self, places: Int64) -> Records:
        """Return the records at the given places."""
        rows = self._records[places]
        expected = record_sums(self._users[places, 0], rows[:, 1:])
        self._require(np.array_equal(expected, rows[:, 0]), "a record does not match its checksum")
        return Records(rows[:, 1], ItemKeys(rows[:, 2 : 2 + self.length]), rows[:, 2 + self.length :])

    def seen(self, places: Int64) -> SeenItems:
        """Return the seen items of the users at the given places."""
        heads, ends = self._seen[places], self._seen[places + 1, 0]
        starts, bounded, sums = heads.T
        is_sound = bool(((starts >= 0) & (starts <= ends) & (ends <= len(self._items))).all())
        self._require(is_sound, "the place of a user's seen items is damaged")
        at, offsets = segments(starts, ends - starts)
        items = self._items[at]
        expected = seen_sums(self._users[places, 0], starts, bounded, items, offsets)
        self._require(np.array_equal(expected, sums), "a user's seen items do not match their checksum")
        return SeenItems(ItemKeys(items), offsets, bounded != 0)

    def seen_counts(self, start: int, stop: int) -> Int64:
        """Return how many items the users from one place to another have seen; `seen` is what verifies them."""
        return np.diff(self._seen[start : stop + 1, 0])

    def _require(self, is_sound: bool, problem: str) -> None:
        if not is_sound:
            raise CorruptArtefactError(str(self.path), problem)


def write_user_file(
    store: Store, name: str, blocks: Iterable[UserRows], *, users: int, seen: int, length: int, bound: int
) -> FileEntry:
    """Write blocks of users, ascending over all of them, as one file; memory holds one block.

    Parameters
    ----------
    users, seen
        Rows and seen items of all blocks together; fewer or more raise `ValueError`, and there must be one row.
    length, bound
        Items of a record, and the largest number of seen items of a user.
    """
    header = _Header(users, length, seen, bound, max(1, users.bit_length() - 1), _hash_of(name))

    def fill(file: IO[bytes]) -> None:
        draft = _Draft.of(file, header)
        for block in blocks:
            draft.add(block)
        draft.close(header)

    return store.write_with(name, fill, rows=users)


@dataclass
class _Section:
    """A part of the file that grows from its start."""

    file: IO[bytes]
    at: int

    def add(self, values: npt.NDArray[Any]) -> None:
        self.file.seek(self.at)
        self.at += self.file.write(np.ascontiguousarray(values).data)


@dataclass
class _Draft:
    """A file on its way, section by section."""

    starts: _Section
    users: _Section
    records: _Section
    seen: _Section
    items: _Section
    shift: np.uint64
    prefixes: int = 0
    rows: int = 0
    pairs: int = 0

    @classmethod
    def of(cls, file: IO[bytes], header: _Header) -> "_Draft":
        starts, users, records, seen, items = (_Section(file, at) for at in header.sections[:-1])
        return cls(starts, users, records, seen, items, np.uint64(64 - header.bits))

    def add(self, block: UserRows) -> None:
        """Append the users of a block."""
        users, (totals, items, times), seen = block
        self._add_starts(_prefix(users, self.shift))
        self.users.add(np.stack([users, key_sums(users)], axis=1))
        values = np.concatenate([totals[:, None], items, times], axis=1)
        self.records.add(np.concatenate([record_sums(users, values)[:, None], values], axis=1))
        places, offsets = segments(seen.offsets[:-1], np.diff(seen.offsets))
        starts, bounded, found = self.pairs + offsets[:-1], seen.bounded.astype(np.int64), seen.items[places]
        sums = seen_sums(users, starts, bounded, found, offsets)
        self.seen.add(np.stack([starts, bounded, sums], axis=1))
        self.items.add(found)
        self.rows += len(users)
        self.pairs += len(found)

    def _add_starts(self, prefixes: Int64) -> None:
        """Write the starts up to the prefix of the block's last user."""
        reached = np.arange(self.prefixes, prefixes[-1] + 1)
        self.starts.add((self.rows + np.searchsorted(prefixes, reached)).astype(np.uint32))
        self.prefixes += len(reached)

    def close(self, header: _Header) -> None:
        """Write the ends and the header."""
        if (self.rows, self.pairs) != (header.users, header.seen) or not self.rows:
            announced = f"{header.users} users with {header.seen} seen items"
            message = f"{announced} were announced, {self.rows} with {self.pairs} came"
            raise ValueError(message)
        self.starts.add(np.full((1 << header.bits) + 1 - self.prefixes, self.rows, np.uint32))
        self.seen.add(np.array([self.pairs, 0, 0]))
        file = self.starts.file
        file.seek(0)
        file.write(header.encode())
        file.truncate(header.sections[-1])


def _prefix(users: UserKeys, shift: np.uint64) -> Int64:
    """Return the first bits of keys, (n,), in the order of the keys."""
    return ((users.view(np.uint64) ^ _SIGN) >> shift).astype(np.int64)


def _hash_of(name: str) -> int:
    """Return the hash of the last part of a name, 63 bits."""
    return int(xxhash.xxh3_64_intdigest(name.rpartition("/")[2].encode())) >> 1
