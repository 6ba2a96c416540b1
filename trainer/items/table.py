"""The item table: which item owns which row of the embeddings.

Rows are given and taken between windows only, from the committed windows alone, so every rank that follows the
commit order has the same table without communication.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NewType

import numpy as np
import numpy.typing as npt

from contracts import PADDING_KEY, ItemKeys

__all__ = ["FIRST_ITEM", "PADDING", "SHARED", "ItemTable", "RowChanges", "TableRows"]

TableRows = NewType("TableRows", npt.NDArray[np.int64])
"""Rows of the item table, of any shape; the rows of an index are others (`contracts.IndexRows`)."""

PADDING: Final = 0
"""The row of missing history; zeros, never trained."""

SHARED: Final = 1
"""The row of all items that have none of their own."""

FIRST_ITEM: Final = 2


class RowChanges(NamedTuple):
    """What an update did: rows that were given to new items and rows that were taken from expired ones."""

    admitted: TableRows
    evicted: TableRows


class ItemTable:
    """Maps keys to rows; `keys`, `seen_ms` and `ids` are indexed by row, free rows hold `PADDING_KEY`.

    Parameters
    ----------
    capacity
        Rows at the start, doubled whenever they do not suffice.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self.keys = ItemKeys(np.full(capacity, PADDING_KEY, np.int64))
        self.seen_ms = np.zeros(capacity, np.int64)
        self.ids: npt.NDArray[np.object_] = np.full(capacity, None, object)
        self._sort()

    @property
    def capacity(self) -> int:
        """The number of rows, free ones and the two special ones included."""
        return len(self.keys)

    @property
    def live(self) -> TableRows:
        """The rows that items own, ascending."""
        return self._live

    def __len__(self) -> int:
        return len(self._live)

    def rows(self, keys: ItemKeys) -> TableRows:
        """Return the rows of keys of any shape: `PADDING` for the padding key, `SHARED` for items without a row."""
        missing = np.where(keys == PADDING_KEY, PADDING, SHARED)
        if not len(self._sorted_keys):
            return TableRows(missing)
        place = np.minimum(np.searchsorted(self._sorted_keys, keys), len(self._sorted_keys) - 1)
        return TableRows(np.where(self._sorted_keys[place] == keys, self._sorted_rows[place], missing))

    def touch(self, keys: ItemKeys, event_ms: int) -> None:
        """Note that the items of `keys` that have a row occurred as late as `event_ms`."""
        found = self.rows(keys)
        rows = found[found >= FIRST_ITEM]
        self.seen_ms[rows] = np.maximum(self.seen_ms[rows], event_ms)

    def expire(self, before_ms: int) -> TableRows:
        """Free the rows of items last seen before `before_ms` and return them."""
        expired = TableRows(self._live[self.seen_ms[self._live] < before_ms])
        self.keys[expired], self.seen_ms[expired], self.ids[expired] = PADDING_KEY, 0, None
        self._sort()
        return expired

    def admit(self, keys: ItemKeys, ids: npt.NDArray[np.object_], event_ms: int) -> TableRows:
        """Give rows to the items of `keys` that have none, lowest free rows first, and return these rows."""
        new = self.rows(keys) == SHARED
        free = np.flatnonzero(self.keys[FIRST_ITEM:] == PADDING_KEY) + FIRST_ITEM
        while len(free) < new.sum():
            free = np.concatenate([free, np.arange(self.capacity, 2 * self.capacity)])
            self._double()
        rows = TableRows(free[: new.sum()])
        self.keys[rows], self.seen_ms[rows], self.ids[rows] = keys[new], event_ms, ids[new]
        self._sort()
        return rows

    def _double(self) -> None:
        size = self.capacity
        self.keys = ItemKeys(np.concatenate([self.keys, np.full(size, PADDING_KEY, np.int64)]))
        self.seen_ms = np.concatenate([self.seen_ms, np.zeros(size, np.int64)])
        self.ids = np.concatenate([self.ids, np.full(size, None, object)])

    def _sort(self) -> None:
        self._live = TableRows(np.flatnonzero(self.keys != PADDING_KEY))
        order = np.argsort(self.keys[self._live])
        self._sorted_rows = TableRows(self._live[order])
        self._sorted_keys = ItemKeys(self.keys[self._sorted_rows])

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return the table as arrays, for the checkpoint."""
        ids = json.dumps(self.ids[self._live].tolist()).encode()
        return {"keys": self.keys, "seen_ms": self.seen_ms, "ids": np.frombuffer(bytearray(ids), np.uint8)}

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Take over the table that `state_dict` describes."""
        self.keys, self.seen_ms = ItemKeys(np.asarray(state["keys"]).copy()), np.asarray(state["seen_ms"]).copy()
        self._sort()
        self.ids = np.full(self.capacity, None, object)
        self.ids[self._live] = json.loads(np.asarray(state["ids"]).tobytes())
