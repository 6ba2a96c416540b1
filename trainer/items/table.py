"""The item table: which item owns which row of the embeddings.

Rows are given and taken between windows only, from the committed windows alone, so every rank that follows the
commit order has the same table without communication. A window costs what it touches, whatever the table holds.
"""

import heapq
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from contracts import PADDING_KEY, ItemKeys
from trainer.items.ids import ItemIds, pack_ids
from trainer.items.key_map import KeyMap
from trainer.items.last_seen import LastSeen
from trainer.items.rows import FIRST_ITEM, PADDING, SHARED, TableRows, TouchedRows
from trainer.ranks.workers import Workers

__all__ = ["FIRST_ITEM", "PADDING", "SHARED", "ItemTable", "RowChanges", "TableRows"]

_AT_ONCE: Final = 1 << 16
"""Keys looked up at a time: a look-up takes six numbers for each, which stay in the processor's cache."""


class RowChanges(NamedTuple):
    """What an update did: rows that were given to new items and rows that were taken from expired ones."""

    admitted: TableRows
    evicted: TableRows


class ItemTable:
    """Maps keys to rows; `keys` and `seen_ms` are indexed by row, free rows hold `PADDING_KEY`.

    Ranks share the `ids`. `touched` are the rows of which any of the three has changed.

    Parameters
    ----------
    capacity
        Rows at the start, doubled whenever they do not suffice.
    workers
        The ranks; a single one if None.
    """

    touched: TouchedRows
    _map: KeyMap
    _seen: LastSeen | None
    _live: npt.NDArray[np.int64]
    _count: int
    _fresh: int
    _freed: list[int]

    def __init__(self, capacity: int = 1024, workers: Workers | None = None) -> None:
        self.keys = ItemKeys(np.full(capacity, PADDING_KEY, np.int64))
        self.seen_ms = np.zeros(capacity, np.int64)
        self._workers = workers
        self.ids = ItemIds(capacity, workers)
        self._index()

    @property
    def capacity(self) -> int:
        """The number of rows, free ones and the two special ones included."""
        return len(self.keys)

    @property
    def live(self) -> TableRows:
        """The rows that items own, ascending."""
        return TableRows(self._live[: self._count])

    def __len__(self) -> int:
        return self._count

    def rows(self, keys: ItemKeys) -> TableRows:
        """Return the rows of keys of any shape: `PADDING` for the padding key, `SHARED` for items without a row."""
        flat = ItemKeys(np.ascontiguousarray(keys).ravel())
        rows = np.empty(len(flat), np.int64)
        for first in range(0, len(flat), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            rows[part] = self._rows(ItemKeys(flat[part]))
        return TableRows(rows.reshape(keys.shape))

    def _rows(self, keys: ItemKeys) -> npt.NDArray[np.int64]:
        found = self._map.find(self.keys, keys)
        return np.where(found >= FIRST_ITEM, found, np.where(keys == PADDING_KEY, PADDING, SHARED))

    def touch(self, keys: ItemKeys, event_ms: int) -> None:
        """Note that the items of `keys` that have a row occurred as late as `event_ms`."""
        found = self.rows(keys)
        rows = TableRows(found[found >= FIRST_ITEM])
        self.touched.mark(rows)
        self._see(TableRows(rows[self.seen_ms[rows] < event_ms]), event_ms)

    def expire(self, before_ms: int) -> TableRows:
        """Free the rows of items last seen before `before_ms` and return them."""
        if self._seen is None:
            # Not before it is asked for: without a time to live, nobody does.
            self._seen = LastSeen(self.live, self.seen_ms)
        self._seen.tidy(self.live, self.seen_ms)
        expired = self._seen.before(before_ms, self.seen_ms)
        if len(expired):
            self._map.remove(self.keys, expired)
            self.keys[expired], self.seen_ms[expired] = PADDING_KEY, 0
            self.ids.put(expired, None)
            self.touched.mark(expired)
            for row in expired.tolist():
                heapq.heappush(self._freed, row)
            self._set_live(np.delete(self.live, np.searchsorted(self.live, expired)))
        return expired

    def admit(self, keys: ItemKeys, ids: npt.NDArray[np.object_], event_ms: int) -> TableRows:
        """Give rows to the items of `keys` that have none, lowest free rows first, and return these rows."""
        new = self.rows(keys) == SHARED
        rows = self._take(int(new.sum()))
        self.keys[rows] = keys[new]
        self.ids.put(rows, ids[new])
        self._map.insert(self.keys, rows)
        self.touched.mark(rows)
        self._see(rows, event_ms)
        self._add_live(rows)
        return rows

    def _see(self, rows: TableRows, event_ms: int) -> None:
        self.seen_ms[rows] = event_ms
        if self._seen is not None:
            self._seen.note(rows, event_ms)

    def _take(self, count: int) -> TableRows:
        """Return the lowest free rows, ascending, (count,)."""
        while self.capacity - FIRST_ITEM - len(self) < count:
            self._double()
        again = [heapq.heappop(self._freed) for _ in range(min(count, len(self._freed)))]
        fresh = np.arange(self._fresh, self._fresh + count - len(again))
        self._fresh += len(fresh)
        return TableRows(np.concatenate([np.array(again, np.int64), fresh]))

    def _add_live(self, rows: TableRows) -> None:
        """Add ascending rows (n,); where all follow the rows that are live, nothing else moves."""
        count, after = self._count, self._count + len(rows)
        if count and len(rows) and rows[0] < self._live[count - 1]:
            self._set_live(np.insert(self.live, np.searchsorted(self.live, rows), rows))
            return
        if after > len(self._live):
            self._live = np.concatenate([self.live, np.empty(self.capacity - count, np.int64)])
        self._live[count:after] = rows
        self._count = after

    def _set_live(self, rows: npt.NDArray[np.int64]) -> None:
        self._live, self._count = rows, len(rows)

    def _double(self) -> None:
        size = self.capacity
        self.keys = ItemKeys(np.concatenate([self.keys, np.full(size, PADDING_KEY, np.int64)]))
        self.seen_ms = np.concatenate([self.seen_ms, np.zeros(size, np.int64)])
        self.ids.grow(self.capacity)
        self.touched.grow(self.capacity)

    def _index(self) -> None:
        """Make from the keys what finds, gives and takes rows."""
        self.touched = TouchedRows(self.capacity)
        self._set_live(np.flatnonzero(self.keys != PADDING_KEY))
        self._map = KeyMap(self.keys, self.live)
        self._seen = None
        self._fresh = int(self.live[-1]) + 1 if len(self) else FIRST_ITEM
        # Rows from `_fresh` on are free; below it, a heap holds those that are. Ascending numbers are one.
        free = self.keys[FIRST_ITEM : self._fresh] == PADDING_KEY
        self._freed = (np.flatnonzero(free) + FIRST_ITEM).tolist()

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return the table as arrays, for the checkpoint."""
        return self.state_of(TableRows(np.arange(self.capacity)))

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Take over the table that `state_dict` describes, or that of format 2, whose ids are JSON text."""
        self.keys, self.seen_ms = ItemKeys(np.asarray(state["keys"]).copy()), np.asarray(state["seen_ms"]).copy()
        self.ids = ItemIds(self.capacity, self._workers)
        if "ids" in state:
            rows = TableRows(np.flatnonzero(self.keys != PADDING_KEY))
            self.ids.put(rows, np.array(json.loads(np.asarray(state["ids"]).tobytes()), object))
        else:
            every = TableRows(np.arange(self.capacity))
            self.ids.put_packed(every, np.asarray(state["id_sizes"]), np.asarray(state["id_bytes"]))
        self._index()

    def state_of(self, rows: TableRows) -> dict[str, npt.NDArray[Any]]:
        """Return some rows (n,) of the table as arrays; called as `ItemIds.of`."""
        sizes, data = pack_ids(self.ids.of(rows))
        return {"keys": self.keys[rows], "seen_ms": self.seen_ms[rows], "id_sizes": sizes, "id_bytes": data}

    def load_rows(self, rows: TableRows, state: Mapping[str, npt.ArrayLike]) -> None:
        """Take over the rows (n,) that `state_of` describes."""
        self.keys[rows], self.seen_ms[rows] = np.asarray(state["keys"]), np.asarray(state["seen_ms"])
        self.ids.put_packed(rows, np.asarray(state["id_sizes"]), np.asarray(state["id_bytes"]))
        self._index()
