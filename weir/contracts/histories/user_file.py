"""A file of users: immutable, sorted by key, mapped; a look-up reads a few pages whatever the size of the file.

Sections, each at a multiple of 4096 bytes, little-endian:

- header: magic, version, counts, and their checksum;
- starts (prefix table): uint32 (2^bits + 1,), the number of users whose key is below each prefix of `bits` bits;
- users: int64 (n, 2), keys in ascending order, each with its checksum;
- records: int64 (n, 2 + 2L), [checksum, positives ever seen, L items, L times]: one block is one user;
- seen: int64 (n + 1, 3), [start of the user's items, whether older ones were left out, checksum];
- items: int64 (m,), the seen items.

Opening verifies the header and the size, and reads nothing else. Readers verify every row (`lookup`).
"""

import mmap
import struct
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from weir.contracts.base.errors import CorruptArtefactError
from weir.contracts.base.keys import UserKeys
from weir.contracts.histories.user_rows import Int64, UserRows, key_sum, key_sums, record_sums, seen_sums, segments
from weir.contracts.storage.store import FileEntry, Store

__all__ = ["FEW", "UserFile", "prefixes_of", "write_user_file"]

FEW: Final = 10
"""Users of one prefix that are examined together; with well distributed keys, one prefix in 100,000 has more."""

_MAGIC: Final = b"WEIRUSER"
_VERSION: Final = 1
_PAGE: Final = 4096
_GAP: Final = 8
"""Pages at most this far apart are requested together with the pages between; all at once if the mean distance is
smaller."""
_FIELDS: Final = struct.Struct("<8s7q")
_SUM: Final = struct.Struct("<Q")
_RANGE: Final = struct.Struct("<2I")
_USER: Final = struct.Struct("<2q")
_WORDS: Final = struct.Struct("<4q")
_HALF: Final = 1 << 63
_SIGN: Final = np.uint64(_HALF)

DAMAGED_KEY: Final = "a key of a user is damaged"
DAMAGED_ORDER: Final = "its prefix table, or the order of its users, is damaged"


class _Header(NamedTuple):
    """The header of a file: the numbers n, L and m as `users`, `length` and `seen`, and further facts.

    `bound` is the largest number of seen items of a user, `bits` the length of a prefix, `name` a hash of the file's
    name.
    """

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
        """Offsets of starts, users, records, seen and items, and the size of the file."""
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
            remedy = "upgrade weir" if version > _VERSION else "write a new store from the log"
            raise CorruptArtefactError(path, f"has version {version}, this software reads {_VERSION}: {remedy}")
        return cls(*fields)


class UserFile:
    """An open file of users that was written as `name` (default: that of `path`); any number of threads may read it.

    Raises `CorruptArtefactError`, which names the file, if the header is damaged, or the size or name is another one.

    `count` users have records of `width` words (with `length` items) and `pairs` seen items in all, each at most
    `bound`. `lookup` reads `data`, the bytes, directly and verifies them: `ranges_at` (the prefix table), `users_at`,
    `rows_at`, `heads_at` and `items_at` are the offsets of the sections, and a key shifted by `shift` bits is its
    prefix.
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
        self.shift, self.width, self.pairs, self.data = 64 - header.bits, header.width, header.seen, data
        self.ranges_at, self.users_at, self.rows_at, self.heads_at, self.items_at = sections[:-1]
        self._users = self._words(self.users_at, self.count, 2)
        self._keys: memoryview[int] = memoryview(data)[self.users_at :][: 16 * self.count].cast("q")[::2]

    def _words(self, start: int, count: int, width: int) -> Int64:
        """Return a part of the file as (count, width)."""
        return np.frombuffer(self.data, np.int64, count * width, start).reshape(count, width)

    def place(self, user: int) -> int:
        """Return the place of a user, -1 if it is absent; for a few users faster than numpy."""
        data, at = self.data, self.users_at - _USER.size
        low, high = _RANGE.unpack_from(data, self.ranges_at + 4 * ((user + _HALF) >> self.shift))
        low = bisect_left(self._keys, user, min(low, self.count), min(high, self.count))
        ahead, ahead_sum, here, here_sum = _WORDS.unpack_from(data, at + _USER.size * low)
        # The neighbours prove that the place is right, or the user absent.
        if (low and ahead_sum != key_sum(ahead)) or (low < self.count and here_sum != key_sum(here)):
            raise CorruptArtefactError(str(self.path), DAMAGED_KEY)
        if (low and ahead >= user) or (low < self.count and here < user):
            raise CorruptArtefactError(str(self.path), DAMAGED_ORDER)
        return low if low < self.count and here == user else -1

    def row(self, place: int) -> Int64:
        """Return the words of the record at a place, (2 + 2L,), without verifying its checksum."""
        return np.frombuffer(self.data, np.int64, self.width, self.rows_at + 8 * self.width * place)

    def head(self, place: int) -> tuple[int, int, int, int]:
        """Return (start, flag, checksum, end) of the seen items of the user at a place; flag 1: older were left out."""
        start, bounded, expected, end = _WORDS.unpack_from(self.data, self.heads_at + 24 * place)
        return start, bounded, expected, end

    def items(self, start: int, end: int) -> Int64:
        """Return the seen items from index `start` to `end`, without verifying their checksum."""
        return np.frombuffer(self.data, np.int64, end - start, self.items_at + 8 * start)

    def read_ahead(self, starts: Int64, ends: Int64) -> None:
        """Ask the kernel for the pages of pieces (n,) without waiting, so that it reads many at once.

        A page fault while reading a piece costs a wait, and several times the CPU.
        """
        first, last = starts.min(keepdims=True) // _PAGE, (ends.max(keepdims=True) - 1) // _PAGE
        if last[0] - first[0] > _GAP * len(starts):
            pages = np.unique(np.concatenate([starts // _PAGE, (ends - 1) // _PAGE]))
            edges = np.flatnonzero(np.diff(pages) > _GAP)
            first, last = pages[np.append(0, edges + 1)], pages[np.append(edges, len(pages) - 1)]
        for start, length in zip((_PAGE * first).tolist(), (_PAGE * (last + 1 - first)).tolist(), strict=True):
            self.data.madvise(mmap.MADV_WILLNEED, start, length)

    def release(self) -> None:
        """Unmap all pages; they stay in the page cache, and are mapped again when they are read."""
        self.data.madvise(mmap.MADV_DONTNEED)

    def users(self, start: int, stop: int) -> UserKeys:
        """Return the keys from place `start` to `stop`, ascending; raises `CorruptArtefactError`."""
        found = self._users[start:stop]
        if not np.array_equal(key_sums(found[:, 0]), found[:, 1]):
            raise CorruptArtefactError(str(self.path), DAMAGED_KEY)
        return UserKeys(found[:, 0])

    def seen_counts(self, start: int, stop: int) -> Int64:
        """Return the number of seen items of each user from place `start` to `stop`, without verifying checksums."""
        return np.diff(self._words(self.heads_at + 24 * start, stop + 1 - start, 3)[:, 0])


def write_user_file(
    store: Store, name: str, blocks: Iterable[UserRows], *, users: int, seen: int, length: int, bound: int
) -> FileEntry:
    """Write blocks of users, ascending across all blocks, as one file; memory holds one block.

    Parameters
    ----------
    users, seen
        Rows (at least one) and seen items of all blocks together; raises `ValueError` if the blocks have other numbers.
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
    """A section of a file being written; `at` is the byte where the next values go."""

    file: IO[bytes]
    at: int

    def add(self, values: npt.NDArray[Any]) -> None:
        """Append values to the section."""
        self.file.seek(self.at)
        self.at += self.file.write(np.ascontiguousarray(values).data)


@dataclass
class _Draft:
    """A file being written: its sections, and the prefixes, rows and seen items written so far."""

    starts: _Section
    users: _Section
    records: _Section
    seen: _Section
    items: _Section
    shift: int
    prefixes: int = 0
    rows: int = 0
    pairs: int = 0

    @classmethod
    def of(cls, file: IO[bytes], header: _Header) -> "_Draft":
        starts, users, records, seen, items = (_Section(file, at) for at in header.sections[:-1])
        return cls(starts, users, records, seen, items, 64 - header.bits)

    def add(self, block: UserRows) -> None:
        """Append the users of a block."""
        users, (totals, items, times), seen = block
        self._add_starts(prefixes_of(users, self.shift))
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
        """Write the prefix table up to the prefix of the block's last user."""
        reached = np.arange(self.prefixes, prefixes[-1] + 1)
        self.starts.add((self.rows + np.searchsorted(prefixes, reached)).astype(np.uint32))
        self.prefixes += len(reached)

    def close(self, header: _Header) -> None:
        """Complete the prefix table and the seen section, and write the header; raises `ValueError`."""
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


def prefixes_of(users: UserKeys, shift: int | npt.NDArray[np.uint64]) -> Int64:
    """Return the prefixes of keys, (n,), in the order of signed keys: the bits that a right shift leaves."""
    return ((users.view(np.uint64) ^ _SIGN) >> np.asarray(shift, np.uint64)).astype(np.int64)


def _hash_of(name: str) -> int:
    """Return the hash of the last part of a name, 63 bits."""
    return int(xxhash.xxh3_64_intdigest(name.rpartition("/")[2].encode())) >> 1
