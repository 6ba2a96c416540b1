"""Columns over n users: their last positives with times, their numbers of positives, and their seen items.

Each row has a checksum: a sum of products with odd numbers, modulo 2^64. It detects every flipped bit, and numpy
computes it for a whole batch at once.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from weir.contracts.base.keys import PADDING_KEY, ItemKeys, UserKeys

__all__ = [
    "Records",
    "SeenItems",
    "UserRows",
    "join",
    "join_segments",
    "key_sum",
    "key_sums",
    "record_sum",
    "record_sums",
    "seen_sum",
    "seen_sums",
    "segments",
    "spread",
    "unite",
    "unknown_users",
]

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]

_ODD: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1
_HALF: Final = 1 << 63
_SALT: Final = 0x632BE59BD9B4E019
"""Makes rows of zeros, such as holes of a file, invalid."""


class Records(NamedTuple):
    """The records of n users: `totals` (n,), positives ever seen; the last L `items` and `times` (n, L), oldest first.

    A user with fewer than L positives has `PADDING_KEY` and time 0 in front. Times are milliseconds.
    """

    totals: Int64
    items: ItemKeys
    times: Int64

    def take(self, rows: Int64) -> "Records":
        """Return the records of the given rows."""
        return Records(self.totals[rows], ItemKeys(self.items[rows]), self.times[rows])


class SeenItems(NamedTuple):
    """The items that n users have seen, positive and negative, in order of arrival per user.

    User i has ``items[offsets[i] : offsets[i + 1]]``. `bounded` (n,) marks users whose oldest items were left out.
    """

    items: ItemKeys
    offsets: Int64
    bounded: Bool

    def of(self, user: int) -> ItemKeys:
        """Return the items of the user in a row."""
        return ItemKeys(self.items[self.offsets[user] : self.offsets[user + 1]])

    def take(self, rows: Int64) -> "SeenItems":
        """Return the seen items of the given rows."""
        starts, counts = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        places, offsets = segments(starts, counts)
        return SeenItems(ItemKeys(self.items[places]), offsets, self.bounded[rows])


class FoundUsers(Protocol):
    """The result of a look-up of users (n,). `records` and `seen` verify checksums and raise `CorruptArtefactError`."""

    @property
    def users(self) -> UserKeys:
        """The user keys that were looked up, (n,)."""

    def records(self) -> Records:
        """Return the newest record of each user, (n,); unknown users have empty records."""

    def seen(self, asked: Int64) -> SeenItems:
        """Return the seen items of the users at rows `asked` (m,), united over all files."""


class UserRows(NamedTuple):
    """The rows of a user file: user keys (n,), ascending and distinct, with their records and seen items."""

    users: UserKeys
    records: Records
    seen: SeenItems


def unknown_users(count: int, length: int) -> Records:
    """Return empty records for `count` unknown users."""
    items = ItemKeys(np.full((count, length), PADDING_KEY, np.int64))
    return Records(np.zeros(count, np.int64), items, np.zeros((count, length), np.int64))


def spread(seen: SeenItems, places: Int64, count: int) -> SeenItems:
    """Return the seen items of `count` users: `seen` at rows `places` (n,), ascending, no items in other rows."""
    counts, bounded = np.zeros(count + 1, np.int64), np.zeros(count, np.bool_)
    counts[1 + places], bounded[places] = np.diff(seen.offsets), seen.bounded
    return SeenItems(seen.items, np.cumsum(counts), bounded)


def join(parts: Sequence[SeenItems]) -> SeenItems:
    """Return the seen items of the users of all parts, in order of the parts."""
    counts = np.concatenate([np.diff(part.offsets) for part in parts])
    items = ItemKeys(np.concatenate([part.items for part in parts]))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return SeenItems(items, offsets, np.concatenate([part.bounded for part in parts]))


def unite(parts: Sequence[SeenItems], bound: int) -> SeenItems:
    """Return the newest `bound` seen items of each of n users, whom all parts share; parts go from old to new.

    A part holds only items that older parts do not.
    """
    users = len(parts[0].bounded)
    return join_segments(join(parts), np.tile(np.arange(users), len(parts)), np.full(users, bound))


def join_segments(parts: SeenItems, owners: Int64, bounds: Int64) -> SeenItems:
    """Return the newest `bounds` (n,) seen items of n users, from segments (s,) in order of age.

    `owners` (s,) is the user of each segment. A segment holds only items that older segments of its user do not.
    """
    counts = np.diff(parts.offsets)
    order = np.argsort(owners, kind="stable")
    places, _ = segments(parts.offsets[order], counts[order])
    total = np.bincount(owners, counts, len(bounds)).astype(np.int64)
    kept = np.minimum(total, bounds)
    wanted, offsets = segments(np.cumsum(total) - kept, kept)
    bounded = np.bincount(owners, parts.bounded, len(bounds)) > 0
    return SeenItems(ItemKeys(parts.items[places[wanted]]), offsets, bounded | (total > bounds))


def segments(starts: Int64, counts: Int64) -> tuple[Int64, Int64]:
    """Return the concatenated places (m,) of n segments, and the offsets (n + 1,) of the segments among them."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    places: Int64 = np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])
    return places, offsets


def record_sums(users: Int64, values: Int64) -> Int64:
    """Return the checksum of each record (n,), over the user key (n,) and the record's `values` (n, w)."""
    sums: UInt64 = values.view(np.uint64) @ _multipliers(values.shape[1]) + _mark(users)
    return sums.view(np.int64)


def seen_sums(users: Int64, starts: Int64, bounded: Int64, items: Int64, offsets: Int64) -> Int64:
    """Return the checksum of each user (n,), over the seen items (m,), their `bounded` flag and their start.

    User i has ``items[offsets[i] : offsets[i + 1]]``.
    """
    within = np.arange(len(items)) - np.repeat(offsets[:-1], np.diff(offsets))
    # Sums wrap around modulo 2^64, so that differences are the sums of segments.
    sums = np.zeros(len(items) + 1, np.uint64)
    np.cumsum(items.view(np.uint64) * _multiplier(within + 2), out=sums[1:])
    heads = starts.view(np.uint64) * np.uint64(_SALT ^ 2) + bounded.view(np.uint64) * np.uint64(_SALT ^ 4)
    lengths = np.diff(offsets).view(np.uint64) * np.uint64(_SALT)
    total: UInt64 = sums[offsets[1:]] - sums[offsets[:-1]] + heads + lengths + _mark(users)
    return total.view(np.int64)


def record_sum(user: int, values: Int64) -> int:
    """Return the checksum of one user's record of values (w,), as `record_sums` does."""
    return _signed(int(values.view(np.uint64) @ _multipliers(len(values))) + _mark_of(user))


def seen_sum(user: int, start: int, bounded: int, items: Int64) -> int:
    """Return the checksum of one user's seen items (m,), as `seen_sums` does."""
    heads = start * (_SALT ^ 2) + bounded * (_SALT ^ 4) + len(items) * _SALT
    return _signed(int(items.view(np.uint64) @ _seen_multipliers(len(items))) + heads + _mark_of(user))


def key_sum(user: int) -> int:
    """Return the checksum of one user key, as `key_sums` does."""
    return _signed(_mark_of(user))


def _mark_of(user: int) -> int:
    return user * _ODD + _SALT


def _signed(value: int) -> int:
    """Return a number modulo 2^64 as int64."""
    return ((value + _HALF) & _MASK) - _HALF


def key_sums(users: Int64) -> Int64:
    """Return the checksum of each user key (n,); a file stores it beside the key, to find damaged rows."""
    return _mark(users).view(np.int64)


def _mark(users: Int64) -> UInt64:
    marks: UInt64 = users.view(np.uint64) * np.uint64(_ODD) + np.uint64(_SALT)
    return marks


def _multiplier(places: Int64) -> UInt64:
    return (2 * places + 1).view(np.uint64) * np.uint64(_ODD)


@cache
def _multipliers(count: int) -> UInt64:
    return _multiplier(np.arange(count) + 1)


@lru_cache(maxsize=256)
def _seen_multipliers(count: int) -> UInt64:
    return _multiplier(np.arange(count) + 2)
