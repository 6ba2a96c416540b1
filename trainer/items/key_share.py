"""Sharded key index: finds the table row of an item key; each rank holds one key in W."""

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from weir.contracts import PADDING_KEY, ItemKeys
from weir.trainer.items.asked import Asked
from weir.trainer.items.key_map import KeyMap
from weir.trainer.items.rows import TableRows, no_rows
from weir.trainer.ranks.workers import Workers

__all__ = ["KeyShare"]

_SMALLEST: Final = 64

Ints = npt.NDArray[np.int64]


class KeyShare:
    """One rank's shard of the map from keys to rows; `find` queries the other ranks.

    Parameters
    ----------
    workers
        The ranks.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._keys, self._rows = ItemKeys(np.full(_SMALLEST, PADDING_KEY, np.int64)), np.zeros(_SMALLEST, np.int32)
        self._map, self._used, self._free = KeyMap(self._keys, no_rows()), 0, np.empty(0, np.int64)

    @classmethod
    def of(cls, keys: ItemKeys, rows: TableRows, workers: Workers) -> "KeyShare":
        """Build the shards from keys and rows (n,), different ones on each rank; collective."""
        found = cls(workers)
        pairs = workers.deliver(torch.from_numpy(np.stack([keys, rows], 1)), found._owners(keys)).numpy()
        found._insert(ItemKeys(pairs[:, 0].copy()), TableRows(pairs[:, 1]))
        return found

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self._map.nbytes + self._keys.nbytes + self._rows.nbytes

    def find(self, keys: ItemKeys) -> TableRows:
        """Return the rows of keys (n,), different ones on each rank, -1 if absent; collective."""
        if self._workers.world_size == 1:
            return self._find(keys)
        asked = Asked.of(keys, self._owners(keys), self._workers)
        found = torch.from_numpy(self._find(ItemKeys(asked.values)).astype(np.int32))
        return TableRows(asked.answered(found).numpy().astype(np.int64))

    def find_alike(self, keys: ItemKeys) -> TableRows:
        """Return the rows of keys (n,) that are the same on all ranks: each looks up its own share."""
        found = np.zeros(len(keys), np.int64)
        own = self._own(keys)
        found[own] = 1 + self._find(ItemKeys(keys[own]))
        return TableRows(self._workers.sum(torch.from_numpy(found)).numpy() - 1)

    def insert(self, keys: ItemKeys, rows: TableRows) -> None:
        """Add absent keys (n,) with their rows; keys of other shards are ignored."""
        own = self._own(keys)
        self._insert(ItemKeys(keys[own]), TableRows(rows[own]))

    def remove(self, keys: ItemKeys) -> None:
        """Remove keys (n,); keys of other shards are ignored."""
        lines = self._map.find(self._keys, ItemKeys(keys[self._own(keys)]))
        self._map.remove(self._keys, lines)
        self._free = np.concatenate([self._free, lines])

    def _find(self, keys: ItemKeys) -> TableRows:
        lines = self._map.find(self._keys, keys)
        return TableRows(np.where(lines >= 0, self._rows[lines], -1))

    def _insert(self, keys: ItemKeys, rows: TableRows) -> None:
        lines = self._lines(len(keys))
        self._keys[lines], self._rows[lines] = keys, rows
        self._map.insert(self._keys, TableRows(lines))

    def _lines(self, count: int) -> Ints:
        """Allocate `count` free lines."""
        again, self._free = np.split(self._free, [min(count, len(self._free))])
        missing = count - len(again)
        if (used := self._used + missing) > len(self._keys):
            more = (1 << (used - 1).bit_length()) - len(self._keys)
            self._keys, self._rows = ItemKeys(np.pad(self._keys, (0, more))), np.pad(self._rows, (0, more))
        lines = np.concatenate([again, np.arange(self._used, used)])
        self._used = used
        return lines

    def _owners(self, keys: ItemKeys) -> Ints:
        # Keys are hashes, so the remainder is uniform.
        owners: Ints = (keys.view(np.uint64) % np.uint64(self._workers.world_size)).astype(np.int64)
        return owners

    def _own(self, keys: ItemKeys) -> npt.NDArray[np.bool_] | slice:
        return slice(None) if self._workers.world_size == 1 else self._owners(keys) == self._workers.rank
