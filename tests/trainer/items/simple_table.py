"""The item table as a few plain scans: the oracle of the table that never looks at all rows."""

import numpy as np

from weir.contracts import PADDING_KEY, ItemKeys
from weir.trainer.items.rows import FIRST_ITEM, PADDING, SHARED


class SimpleTable:
    """What `weir.trainer.items.table.ItemTable` does, at a cost that grows with the table."""

    def __init__(self, capacity: int) -> None:
        self.keys = np.full(capacity, PADDING_KEY, np.int64)
        self.seen_ms = np.zeros(capacity, np.int64)
        self.ids = np.full(capacity, None, object)

    @property
    def live(self) -> np.ndarray:
        return np.flatnonzero(self.keys != PADDING_KEY)

    def rows(self, keys: np.ndarray) -> np.ndarray:
        owners = {int(self.keys[row]): int(row) for row in self.live}
        found = [PADDING if key == PADDING_KEY else owners.get(key, SHARED) for key in keys.ravel().tolist()]
        return np.array(found, np.int64).reshape(keys.shape)

    def touch(self, keys: ItemKeys, event_ms: int) -> None:
        rows = self.rows(keys)
        rows = rows[rows >= FIRST_ITEM]
        self.seen_ms[rows] = np.maximum(self.seen_ms[rows], event_ms)

    def expire(self, before_ms: int) -> np.ndarray:
        expired = self.live[self.seen_ms[self.live] < before_ms]
        self.keys[expired], self.seen_ms[expired], self.ids[expired] = PADDING_KEY, 0, None
        return expired

    def admit(self, keys: ItemKeys, ids: np.ndarray, event_ms: int) -> np.ndarray:
        new = self.rows(keys) == SHARED
        free = np.flatnonzero(self.keys[FIRST_ITEM:] == PADDING_KEY) + FIRST_ITEM
        while len(free) < new.sum():
            size = len(self.keys)
            free = np.concatenate([free, np.arange(size, 2 * size)])
            self.keys = np.pad(self.keys, (0, size), constant_values=PADDING_KEY)
            self.seen_ms = np.pad(self.seen_ms, (0, size))
            self.ids = np.concatenate([self.ids, np.full(size, None, object)])
        rows = free[: new.sum()]
        self.keys[rows], self.seen_ms[rows], self.ids[rows] = keys[new], event_ms, ids[new]
        return rows
