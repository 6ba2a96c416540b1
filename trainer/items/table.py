"""The item table: it assigns rows of the embeddings to items, and evicts items that no longer occur.

Rows change owners only between windows, and depend only on the committed windows, so an item gets the same row for any
number of ranks. The cost of a window is proportional to its items, not to the size of the table. The map from keys to
rows is sharded by key (`weir.trainer.items.key_lookup`), all other data by row (`weir.trainer.items.rows`).

To find expired items, `LastSeen` notes each occurrence of a row under its time. A later occurrence makes the note
stale, and it is skipped when its time comes. When most notes are stale, they are rebuilt from the last-seen times.
"""

import heapq
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from weir.contracts import PADDING_KEY, ItemKeys
from weir.contracts.base.arrays import ascending
from weir.trainer.items.ids import IDS, ItemIds, pack_ids
from weir.trainer.items.key_lookup import Asked, KeyShare
from weir.trainer.items.placement import LiveRows
from weir.trainer.items.rows import (
    FIRST_ITEM,
    PADDING,
    SHARED,
    Lines,
    Reader,
    RowSharding,
    TableRows,
    TouchedRows,
    no_rows,
)
from weir.trainer.ranks.workers import Workers

__all__ = [
    "FIRST_ITEM",
    "ID_BYTES",
    "ID_SIZES",
    "KEYS",
    "PADDING",
    "QUESTIONS",
    "SEEN_MS",
    "SHARED",
    "TOO_MANY",
    "EvictedKeys",
    "ItemTable",
    "LastSeen",
    "RowChanges",
    "TableRows",
]


TOO_MANY: Final = PADDING_KEY
"""Key that stands for more keys than there are rows: the export then compares all items, at no more cost."""

_AT_ONCE: Final = 1 << 16
"""Keys looked up at a time: their temporary numbers, six per key, stay in the processor's cache."""

KEYS, SEEN_MS, ID_SIZES, ID_BYTES = ARRAYS = ("keys", "seen_ms", "id_sizes", "id_bytes")
"""Arrays of a table, by their names in a checkpoint."""

_ROWS: Final = "rows"
_ITEMS: Final = "items"
QUESTIONS: Final = frozenset({IDS, _ROWS, _ITEMS})
"""Queries of rank 0 to the other ranks; see `Workers.first`."""


class LastSeen:
    """Index of lines (local rows) by the time they were last seen; `notes` counts its entries, stale ones too.

    Parameters
    ----------
    lines
        Lines to watch at the start, (n,).
    seen_ms
        Last-seen times of all lines.
    """

    def __init__(self, lines: Lines, seen_ms: npt.NDArray[np.int64]) -> None:
        self._make(lines, seen_ms)

    def note(self, lines: Lines, time_ms: int) -> None:
        """Note that lines (n,) were last seen at a time."""
        if not len(lines):
            return
        if time_ms not in self._by_time:
            self._by_time[time_ms] = []
            heapq.heappush(self._times, time_ms)
        self._by_time[time_ms].append(lines)
        self.notes += len(lines)

    def before(self, time_ms: int, seen_ms: npt.NDArray[np.int64]) -> Lines:
        """Return the lines last seen before a time, ascending, and remove them."""
        expired = [np.empty(0, np.int64)]
        while self._times and self._times[0] < time_ms:
            then = heapq.heappop(self._times)
            lines = np.concatenate(self._by_time.pop(then))
            self.notes -= len(lines)
            expired.append(lines[seen_ms[lines] == then])
        return np.unique(np.concatenate(expired))

    def tidy(self, count: int, lines: Callable[[], Lines], seen_ms: npt.NDArray[np.int64]) -> None:
        """Rebuild the index from all watched `lines`, about `count`, if most notes are stale."""
        if self.notes > 4 * max(count, 1024):
            self._make(lines(), seen_ms)

    def _make(self, lines: Lines, seen_ms: npt.NDArray[np.int64]) -> None:
        """Build the index from lines and their last-seen times."""
        ordered = lines[np.argsort(seen_ms[lines], kind="stable")]
        times, first = np.unique(seen_ms[ordered], return_index=True)
        parts = np.split(ordered, first[1:]) if len(ordered) else []
        self._by_time = {int(time): [part] for time, part in zip(times, parts, strict=True)}
        # A sorted list is a valid heap.
        self._times = times.tolist()
        self.notes = len(lines)


class EvictedKeys:
    """Keys of items evicted from rows of this rank since the last `clear`; beyond a limit only `TOO_MANY`.

    After `snapshot`, later keys are also collected separately.
    """

    def __init__(self) -> None:
        self._parts, self._size = list[ItemKeys](), 0
        self._later: EvictedKeys | None = None

    def snapshot(self) -> None:
        """Start to collect later keys separately, too."""
        self._later = EvictedKeys()

    def keep_later(self) -> None:
        """Drop the keys from before the snapshot."""
        later = self._later or EvictedKeys()
        self._parts, self._size, self._later = later._parts, later._size, None

    def add(self, keys: ItemKeys, most: int) -> None:
        """Add keys (n,); keep at most `most` distinct keys in total."""
        if self._later is not None:
            self._later.add(keys, most)
        self._parts.append(keys)
        self._size += len(keys)
        # Deduplicate at twice the limit only, so that sorting is cheap per added key.
        if self._size > 2 * most:
            every = self.keys
            fits = len(every) <= most and TOO_MANY not in every
            self._parts = [every if fits else ItemKeys(np.full(1, TOO_MANY, np.int64))]
            self._size = len(self._parts[0])

    @property
    def keys(self) -> ItemKeys:
        """The distinct keys (n,), ascending."""
        return ItemKeys(ascending(np.concatenate([np.empty(0, np.int64), *self._parts])))

    def clear(self) -> None:
        """Drop all keys."""
        self._parts, self._size = [], 0


class RowChanges(NamedTuple):
    """Table rows that changed owners: rows given to new items, and rows taken from evicted items."""

    admitted: TableRows
    evicted: TableRows


class _Index(NamedTuple):
    """Lookup structures derived from the keys: the rows `in_use`, and the map `rows` from keys to rows."""

    in_use: LiveRows
    rows: KeyShare


class ItemTable:
    """Assigns rows to items. `keys` and `seen_ms` have a line per row of this rank; free rows have `PADDING_KEY`.

    `touched` tracks changed lines of this rank, `left` the keys of items evicted from rows of this rank. Unless noted
    otherwise, methods are collective, with the same arguments on all ranks.

    Parameters
    ----------
    capacity
        Initial rows over all ranks, doubled when they are used up.
    workers
        The ranks; a single one if None.
    """

    _seen: LastSeen | None

    def __init__(self, capacity: int = 1024, workers: Workers | None = None) -> None:
        self._workers = workers or Workers()
        self._stripes = RowSharding(self._workers.rank, self._workers.world_size)
        self.capacity = capacity
        lines = self._stripes.count(capacity)
        self.keys, self.seen_ms = ItemKeys(np.full(lines, PADDING_KEY, np.int64)), np.zeros(lines, np.int64)
        self.ids, self.touched = ItemIds(capacity, workers), TouchedRows(lines)
        self.left = EvictedKeys()
        self._index: _Index | None = _Index(LiveRows(), KeyShare(self._workers))
        self._seen = None

    @property
    def in_use(self) -> LiveRows:
        """Rows of all ranks that are in use."""
        return self._indexed.in_use

    @property
    def _indexed(self) -> _Index:
        """The lookup structures; raises `RuntimeError` after loading, before `index` was called."""
        if self._index is None:
            raise RuntimeError("rows of the item table were loaded and nothing finds them yet: call `index` before")
        return self._index

    @property
    def live(self) -> TableRows:
        """Rows of all ranks in use, ascending; costs O(rows)."""
        return self.in_use.every()

    def __len__(self) -> int:
        return len(self.in_use)

    def rows(self, keys: ItemKeys) -> TableRows:
        """Return the rows of keys of any shape: `PADDING` for the padding key, `SHARED` for items without a row.

        Keys may differ between ranks. Collective, or called by rank 0 in `Workers.first`.
        """
        self._workers.ask(_ROWS)
        return self._rows(keys)

    def _rows(self, keys: ItemKeys) -> TableRows:
        """Do the work of `rows`, in chunks; collective."""
        flat = ItemKeys(np.ascontiguousarray(keys).ravel())
        rows = np.empty(len(flat), np.int64)
        for first in range(0, self._workers.most(len(flat)), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            rows[part] = _unpadded(ItemKeys(flat[part]), self._indexed.rows.find)
        return TableRows(rows.reshape(keys.shape))

    def rows_alike(self, keys: ItemKeys) -> TableRows:
        """Return the rows of keys (n,), the same keys on all ranks, as `rows` does."""
        return _unpadded(keys, self._indexed.rows.find_alike)

    def keys_of(self, rows: TableRows) -> ItemKeys:
        """Return the keys of rows (n,), `PADDING_KEY` for free rows. Collective, or by rank 0 in `Workers.first`."""
        return ItemKeys(self._of(rows)[0])

    def touch(self, keys: ItemKeys, event_ms: int) -> None:
        """Record that the items of `keys` occurred at `event_ms`; items without a row are ignored."""
        rows = self.rows_alike(keys)
        rows = TableRows(rows[rows >= FIRST_ITEM])
        lines = self._lines(rows)
        self.touched.mark(lines)
        self._see(lines[self.seen_ms[lines] < event_ms], event_ms)

    def expire(self, before_ms: int) -> TableRows:
        """Evict items last seen before `before_ms`; return their rows, ascending."""
        if self._seen is None:
            # Built on first use: without a time to live it is never needed.
            self._seen = LastSeen(self._live_lines(), self.seen_ms)
        self._seen.tidy(len(self) // self._workers.world_size, self._live_lines, self.seen_ms)
        expired, keys = self._freed_lines(self._seen.before(before_ms, self.seen_ms))
        if len(expired):
            self._indexed.rows.remove(keys)
            self.ids.put(expired, None)
            self.touched.mark(self._lines(expired))
            self._index = self._indexed._replace(in_use=self.in_use.freed(expired))
        return expired

    def _freed_lines(self, lines: Lines) -> tuple[TableRows, ItemKeys]:
        """Free lines; return the rows freed on all ranks, ascending, and their keys."""
        pairs = np.stack([self._stripes.rows(lines), self.keys[lines]], 1)
        self.left.add(ItemKeys(self.keys[lines]), len(self.keys))
        self.keys[lines], self.seen_ms[lines] = PADDING_KEY, 0
        every = self._workers.collect(torch.from_numpy(pairs)).numpy()
        rows, keys = every[np.argsort(every[:, 0])].T
        return TableRows(rows.copy()), ItemKeys(keys.copy())

    def admit(self, keys: ItemKeys, ids: npt.NDArray[np.object_], event_ms: int) -> TableRows:
        """Give the lowest free rows to the items of `keys` (n,) that have no row; return these rows."""
        new = self.rows_alike(keys) == SHARED
        rows = self._take(int(new.sum()))
        lines = self._lines(rows)
        self.keys[lines] = keys[new][self._stripes.own(rows)]
        self.ids.put(rows, ids[new])
        self._indexed.rows.insert(ItemKeys(keys[new]), rows)
        self.touched.mark(lines)
        self._see(lines, event_ms)
        return rows

    def touched_here(self, reader: Reader) -> TableRows:
        """Return this rank's rows that have changed for a reader, ascending, (n,)."""
        return self._stripes.rows(self.touched.rows(reader))

    def _lines(self, rows: TableRows) -> Lines:
        """Return the lines of this rank's rows among `rows` (n,)."""
        return self._stripes.lines(TableRows(rows[self._stripes.own(rows)]))

    def _rows_here(self) -> TableRows:
        """Return all rows of this rank, in use or free."""
        return self._stripes.rows(np.arange(len(self.keys)))

    def _live_rows(self) -> LiveRows:
        """Return the rows in use over all ranks; only the free rows are exchanged."""
        rows, is_free = self._rows_here(), self.keys == PADDING_KEY
        end = self._workers.most(int(rows[~is_free].max(initial=FIRST_ITEM - 1)) + 1)
        free = rows[is_free & (rows >= FIRST_ITEM) & (rows < end)]
        return LiveRows(end, np.sort(self._workers.collect(torch.from_numpy(free)).numpy()))

    def _live_lines(self) -> Lines:
        """Return the lines of this rank in use."""
        return np.flatnonzero(self.keys != PADDING_KEY)

    def _see(self, lines: Lines, event_ms: int) -> None:
        """Set the last-seen time of lines."""
        self.seen_ms[lines] = event_ms
        if self._seen is not None:
            self._seen.note(lines, event_ms)

    def _take(self, count: int) -> TableRows:
        """Allocate the lowest free rows, ascending, (count,)."""
        while self.capacity - FIRST_ITEM - len(self) < count:
            self._double()
        in_use, rows = self.in_use.taken(count)
        self._index = self._indexed._replace(in_use=in_use)
        return rows

    def _double(self) -> None:
        """Double the capacity."""
        self.capacity *= 2
        lines = self._stripes.count(self.capacity)
        more = lines - len(self.keys)
        self.keys = ItemKeys(np.concatenate([self.keys, np.full(more, PADDING_KEY, np.int64)]))
        self.seen_ms = np.concatenate([self.seen_ms, np.zeros(more, np.int64)])
        self.ids.grow(self.capacity)
        self.touched.grow(lines)

    def index(self) -> None:
        """Build the lookup structures from the keys; required after loading."""
        lines = self._live_lines()
        rows = KeyShare.of(ItemKeys(self.keys[lines]), self._stripes.rows(lines), self._workers)
        self._index, self._seen = _Index(self._live_rows(), rows), None

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return this rank's lines as arrays. Collective, or called by rank 0 in `Workers.first`."""
        return self.state_of(self._rows_here())

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Load the result of `state_dict`; call `index` afterwards."""
        self._index = None
        self.keys, self.seen_ms = ItemKeys(np.asarray(state[KEYS])), np.asarray(state[SEEN_MS])
        self.capacity = int(self._workers.sum(torch.tensor(len(self.keys))))
        self.ids, self.touched = ItemIds(self.capacity, self._workers), TouchedRows(len(self.keys))
        self.left.clear()
        self.ids.put_packed(self._rows_here(), np.asarray(state[ID_SIZES]), np.asarray(state[ID_BYTES]))

    def state_of(self, rows: TableRows, names: Collection[str] = ARRAYS) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays in `names` at rows (n,). Collective, or called by rank 0 in `Workers.first`."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        if {KEYS, SEEN_MS} & {*names}:
            arrays[KEYS], arrays[SEEN_MS] = self._of(rows)
        if {ID_SIZES, ID_BYTES} & {*names}:
            arrays[ID_SIZES], arrays[ID_BYTES] = pack_ids(self.ids.of(rows))
        return {name: arrays[name] for name in names}

    def load_rows(self, rows: TableRows, state: Mapping[str, npt.ArrayLike]) -> None:
        """Load the result of `state_of` for rows (n,) of this rank; call `index` afterwards."""
        self._index = None
        lines = self._stripes.lines(rows)
        self.keys[lines], self.seen_ms[lines] = (np.asarray(state[name]) for name in (KEYS, SEEN_MS))
        self.ids.put_packed(rows, np.asarray(state[ID_SIZES]), np.asarray(state[ID_BYTES]))

    def answer(self, question: str) -> None:
        """Join the collective that rank 0 asks for in `Workers.first` by one of `QUESTIONS`."""
        if question == IDS:
            self.ids.answer()
        elif question == _ROWS:
            self._rows(ItemKeys(np.empty(0, np.int64)))
        else:
            self._exchanged(no_rows())

    def _of(self, rows: TableRows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return keys and last-seen times of rows (n,). Collective, or called by rank 0 in `Workers.first`."""
        if self._workers.world_size == 1 or not len(rows):
            return self.keys[rows], self.seen_ms[rows]
        self._workers.ask(_ITEMS)
        return self._exchanged(rows)

    def _exchanged(self, rows: TableRows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return keys and last-seen times of rows (n,) of any rank; collective."""
        asked = Asked.of(rows, self._stripes.owners(rows), self._workers)
        lines = self._stripes.lines(TableRows(asked.values))
        keys, seen_ms = asked.answered(torch.from_numpy(np.stack([self.keys[lines], self.seen_ms[lines]], 1))).numpy().T
        return keys.copy(), seen_ms.copy()


def _unpadded(keys: ItemKeys, find: Callable[[ItemKeys], TableRows]) -> TableRows:
    """Return the rows of keys (n,): `PADDING` for the padding key, `SHARED` for items that `find` does not find."""
    rows, some = np.full(len(keys), PADDING), np.flatnonzero(keys != PADDING_KEY)
    found = find(ItemKeys(keys[some]))
    rows[some] = np.where(found >= FIRST_ITEM, found, SHARED)
    return TableRows(rows)
