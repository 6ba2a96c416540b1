"""Merging files of users: which ones, and how, in memory that does not grow with them."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from weir.contracts import (
    HistoryFile,
    ItemKeys,
    LocalCache,
    Records,
    Store,
    UserFile,
    UserKeys,
    UserRows,
    UserTable,
    write_user_file,
)
from weir.contracts.user_histories import open_file
from weir.contracts.user_rows import spread, unite, unknown_users

__all__ = ["FileMerge", "merge_plan"]

MOST_DELTAS: Final = 4
"""Deltas of a shard above its base: each costs every look-up a search."""
_RATIO: Final = 4
_ROWS: Final = 4096
"""Users of one file that are in memory at once."""

Slices: TypeAlias = list[slice]


def merge_plan(sizes: Sequence[int]) -> int:
    """Return how many of the newest files of a shard to merge into one, 0 for none; `sizes` has the oldest first.

    Nothing is merged up to four deltas above the base. Then the newest are, together with every older one that is less
    than four times as large as all newer ones together: so a row is written again only when its file has grown by a
    quarter, and what remains is at most four deltas, each at least four times as large as the next.
    """
    if len(sizes) <= 1 + MOST_DELTAS:
        return 0
    count, total = 2, sum(sizes[-2:])
    while count < len(sizes) and (len(sizes) - count + 1 > 1 + MOST_DELTAS or sizes[-count - 1] < _RATIO * total):
        count += 1
        total += sizes[-count]
    return count


@dataclass(frozen=True)
class FileMerge:
    """Merges files of one shard, oldest first; of each user at most `bound` seen items stay.

    `check` is called for every block and may raise, to end a merge that nobody wants any more.
    """

    store: Store
    cache: LocalCache
    bound: int
    check: Callable[[], None] = lambda: None

    def __call__(self, files: Sequence[HistoryFile], run: str) -> HistoryFile:
        """Write the merged file, which `replaces` the given ones; raises `CorruptArtefactError`."""
        opened = [open_file(self.store, file, self.cache, in_order=True) for file in files]
        users, seen = self._count(opened)
        shard, length = files[0].shard, files[0].length
        name = HistoryFile.path(shard, run, secrets.token_hex(4))
        blocks = (self._block(opened, found) for found in self._slices(opened))
        entry = write_user_file(self.store, name, blocks, users=users, seen=seen, length=length, bound=self.bound)
        return HistoryFile.of(name, entry, shard, length, tuple(file.name for file in files))

    def _slices(self, files: list[UserFile]) -> Iterator[Slices]:
        """Yield the rows of each file that lie in the next range of keys."""
        at = [0] * len(files)
        while any(start < file.count for start, file in zip(at, files, strict=True)):
            self.check()
            near = [file.users(start, min(start + _ROWS, file.count)) for start, file in zip(at, files, strict=True)]
            last = min(keys[-1] for keys in near if len(keys))
            stops = [start + int(np.searchsorted(keys, last, "right")) for start, keys in zip(at, near, strict=True)]
            yield [slice(start, stop) for start, stop in zip(at, stops, strict=True)]
            at = stops

    def _count(self, files: list[UserFile]) -> tuple[int, int]:
        """Return how many users and seen items the merged file will have."""
        users, seen = 0, 0
        for found in self._slices(files):
            keys = [file.users(rows.start, rows.stop) for file, rows in zip(files, found, strict=True)]
            counts = [file.seen_counts(rows.start, rows.stop) for file, rows in zip(files, found, strict=True)]
            distinct, place = np.unique(np.concatenate(keys), return_inverse=True)
            users += len(distinct)
            together = np.bincount(place, np.concatenate(counts), len(distinct)).astype(np.int64)
            seen += int(np.minimum(together, self.bound).sum())
        return users, seen

    def _block(self, files: list[UserFile], found: Slices) -> UserRows:
        """Return the newest record of each user, and the union of what it has seen."""
        keys = [file.users(rows.start, rows.stop) for file, rows in zip(files, found, strict=True)]
        users = np.unique(np.concatenate(keys))
        totals, items, times = unknown_users(len(users), files[0].length)
        seen = []
        for file, rows, mine in zip(files, found, keys, strict=True):
            to, stretch = (
                np.searchsorted(users, mine),
                UserTable.of_shard((file,), file.length).stretch(mine, rows.start),
            )
            totals[to], items[to], times[to] = stretch.records()
            seen.append(spread(stretch.seen(np.arange(len(mine))), to, len(users)))
        return UserRows(UserKeys(users), Records(totals, ItemKeys(items), times), unite(seen, self.bound))
