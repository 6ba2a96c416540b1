"""Merge user files, or rebuild them from windows, in bounded memory.

A rebuild reads the windows once, in order. As in the stream, it writes the events of a batch of windows as a delta, and
merges deltas along the way, so it holds only one batch of rows in memory.
"""

import logging
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from weir.contracts import (
    CorruptArtefactError,
    HistoryFile,
    HistoryFiles,
    ItemKeys,
    LocalCache,
    LogState,
    Records,
    Store,
    UserFile,
    UserKeys,
    UserRows,
    UserTable,
    WindowLog,
    open_shard,
    write_user_file,
)
from weir.contracts.base import columns
from weir.contracts.histories.lookup import open_file
from weir.contracts.histories.user_rows import spread, unite, unknown_users
from weir.pipelines.config import PipelineConfig
from weir.pipelines.transforms.histories import TouchedUsers, write_delta

__all__ = ["MOST_DELTAS", "FileMerge", "broken_shards", "merge_plan", "rebuilt"]

logger = logging.getLogger(__name__)

MOST_DELTAS: Final = 4
"""Most deltas of a shard above its base: each look-up searches all of them."""
_RATIO: Final = 4
_USERS_AT_ONCE: Final = 4096
"""Users of one file that are in memory at once."""
_ROWS_AT_ONCE: Final = 500_000
"""Rows of windows that are in memory at once."""
_READ: Final = [columns.USER_KEY, columns.ITEM_KEY, columns.TIMESTAMP, columns.LABEL]

Slices: TypeAlias = list[slice]
"""The rows of each merged file with the keys of one range of users."""


def merge_plan(sizes: Sequence[int]) -> int:
    """Return how many of the newest files of a shard to merge, 0 for none; `sizes` is ordered oldest first.

    Up to four deltas above the base stay. Otherwise the newest files are merged, with each older one that is less than
    four times as large as all newer ones together. So a row is rewritten only when its file has grown by a quarter, and
    at most four deltas remain, each at least four times as large as the next.
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
    """Merges files of one shard, oldest first; keeps at most `bound` seen items per user.

    `check` is called for every block and may raise to cancel the merge.
    """

    store: Store
    cache: LocalCache
    bound: int
    check: Callable[[], None] = lambda: None

    def __call__(self, files: Sequence[HistoryFile], run: str) -> HistoryFile:
        """Write the merged file for run id `run`, and return its entry, which names the merged files in `replaces`.

        Raises `CorruptArtefactError`.
        """
        opened = [open_file(self.store, file, self.cache, in_order=True) for file in files]
        users, seen = self._count(opened)
        shard, length = files[0].shard, files[0].length
        name = HistoryFile.path(shard, run, secrets.token_hex(4))
        blocks = (self._block(opened, slices) for slices in self._slices(opened))
        entry = write_user_file(self.store, name, blocks, users=users, seen=seen, length=length, bound=self.bound)
        return HistoryFile.of(name, entry, shard, length, tuple(file.name for file in files))

    def _slices(self, files: list[UserFile]) -> Iterator[Slices]:
        """Yield, for consecutive ranges of user keys, the rows of each file: at most `_USERS_AT_ONCE` per file."""
        at = [0] * len(files)
        while any(start < file.count for start, file in zip(at, files, strict=True)):
            self.check()
            near = [
                file.users(start, min(start + _USERS_AT_ONCE, file.count))
                for start, file in zip(at, files, strict=True)
            ]
            last = min(keys[-1] for keys in near if len(keys))
            stops = [start + int(np.searchsorted(keys, last, "right")) for start, keys in zip(at, near, strict=True)]
            yield [slice(start, stop) for start, stop in zip(at, stops, strict=True)]
            at = stops

    def _count(self, files: list[UserFile]) -> tuple[int, int]:
        """Return the number of users and seen items of the merged file."""
        users, seen = 0, 0
        for slices in self._slices(files):
            keys = [file.users(rows.start, rows.stop) for file, rows in zip(files, slices, strict=True)]
            counts = [file.seen_counts(rows.start, rows.stop) for file, rows in zip(files, slices, strict=True)]
            distinct, place = np.unique(np.concatenate(keys), return_inverse=True)
            users += len(distinct)
            together = np.bincount(place, np.concatenate(counts), len(distinct)).astype(np.int64)
            seen += int(np.minimum(together, self.bound).sum())
        return users, seen

    def _block(self, files: list[UserFile], slices: Slices) -> UserRows:
        """Return the newest record of each user and the union of the user's seen items."""
        keys = [file.users(rows.start, rows.stop) for file, rows in zip(files, slices, strict=True)]
        users = np.unique(np.concatenate(keys))
        totals, items, times = unknown_users(len(users), files[0].length)
        seen = []
        for file, rows, mine in zip(files, slices, keys, strict=True):
            to = np.searchsorted(users, mine)
            stretch = UserTable.of_shard((file,), file.length).stretch(mine, rows.start)
            totals[to], items[to], times[to] = stretch.records()
            seen.append(spread(stretch.seen(np.arange(len(mine))), to, len(users)))
        return UserRows(UserKeys(users), Records(totals, ItemKeys(items), times), unite(seen, self.bound))


def broken_shards(store: Store, config: PipelineConfig, state: LogState) -> dict[int, str]:
    """Return user shard -> problem for shards whose history files cannot be used; reads only the file headers."""
    files = state.histories
    if files.covered != state.cursor.sequence:
        problem = f"its log has histories of {files.covered} panes out of {state.cursor.sequence}"
        return dict.fromkeys(range(config.user_shards), problem)
    if files.length not in {None, config.kept_items}:
        problem = f"history_length and late_items are {config.kept_items} together, they were {files.length}"
        return dict.fromkeys(range(config.user_shards), problem)
    damaged = {}
    for file in files.files:
        try:
            open_file(store, file, config.cache)
        except CorruptArtefactError as error:
            damaged[file.shard] = str(error)
    return damaged


def rebuilt(
    store: Store, config: PipelineConfig, state: LogState, shards: Collection[int], run: str
) -> tuple[HistoryFile, ...]:
    """Write a new base file for each user shard from the windows, which replaces all files of the shard.

    Returns the files; a shard without users gets none. Raises `CorruptArtefactError` for a damaged window.
    """
    bases = {shard: _Base(store, config, shard, run) for shard in shards}
    for batch in _batches(WindowLog(store), state.cursor.sequence, shards):
        for shard, windows in batch.items():
            bases[shard].add(windows)
    files = []
    for shard, base in bases.items():
        if (file := base.merged()) is not None:
            names = tuple(old.name for old in state.histories.shards.get(shard, ()))
            files.append(file.model_copy(update={"replaces": names}))
    return tuple(files)


def _batches(log: WindowLog, stop: int, shards: Collection[int]) -> Iterator[dict[int, list[pa.Table]]]:
    """Yield user shard -> the rows of the next panes before pane `stop`, about `_ROWS_AT_ONCE` rows in all."""
    batch, rows = defaultdict[int, list[pa.Table]](list), 0
    for pane in takewhile(lambda pane: pane.sequence < stop, log.follow()):
        for shard in pane.examples.keys() & set(shards):
            batch[shard].append(log.examples(pane, shard, _READ))
            rows += len(batch[shard][-1])
        if rows >= _ROWS_AT_ONCE:
            yield batch
            batch, rows = defaultdict(list), 0
    yield batch


@dataclass
class _Base:
    """Builds the base file of one user shard from the windows; `files` are the deltas so far, oldest first."""

    store: Store
    config: PipelineConfig
    shard: int
    run: str
    files: list[HistoryFile] = field(default_factory=list)

    def add(self, windows: list[pa.Table]) -> None:
        """Write the events of the next windows as a delta, and merge deltas if `merge_plan` says so."""
        config = self.config
        before = open_shard(
            self.store, HistoryFiles(shards={self.shard: tuple(self.files)}), self.shard, config.kept_items,
            config.cache,
        )  # fmt: skip
        users = np.concatenate([rows[columns.USER_KEY].to_numpy() for rows in windows])
        touched = TouchedUsers.of(before, UserKeys(users), config.history_length)
        for rows in windows:
            touched.extend(rows)
        name = HistoryFile.path(self.shard, self.run, secrets.token_hex(4))
        rows = touched.delta(config.seen_items)
        self.files.append(write_delta(self.store, name, self.shard, rows, config.seen_items))
        self._merge(merge_plan([file.size for file in self.files]))

    def merged(self) -> HistoryFile | None:
        """Merge all deltas and return the base file, None without users."""
        if len(self.files) > 1:
            self._merge(len(self.files))
        return self.files[0] if self.files else None

    def _merge(self, count: int) -> None:
        """Merge the newest `count` files into one, and remove them."""
        if not count:
            return
        merge = FileMerge(self.store, self.config.cache, self.config.seen_items)
        merged = merge(self.files[-count:], self.run)
        for file in self.files[-count:]:
            self.store.remove(file.name)
        self.files[-count:] = [merged]
