"""Hash table from keys to rows: open addressing in one numpy array whose slots hold rows only.

Linear probing over whole batches: each round probes one slot per key that is not found yet, so the number of
Python steps is the longest probe sequence, not the number of keys. Find, insert and remove cost O(batch); the table is
rebuilt once half of its slots are used or deleted.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from weir.contracts import ItemKeys
from weir.trainer.items.rows import TableRows

__all__ = ["KeyMap"]

_EMPTY: Final = -1
_GONE: Final = -2
"""A slot whose row was removed (tombstone): probing continues past it."""
_SMALLEST: Final = 64
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)

Slots = npt.NDArray[np.int64]


class KeyMap:
    """Hash table from keys to rows; it stores rows only and reads their keys from the caller's array.

    Parameters
    ----------
    keys
        Keys of all rows, (capacity,).
    rows
        Rows to insert, (n,), with distinct keys.
    """

    def __init__(self, keys: ItemKeys, rows: TableRows) -> None:
        self._lay_out(keys, rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the slots."""
        return self._slots.nbytes

    def find(self, keys: ItemKeys, wanted: ItemKeys) -> TableRows:
        """Return the row of each of the `wanted` keys (n,), -1 if absent, given the `keys` of all rows."""
        slots, found = self._home(wanted), np.full(len(wanted), -1, np.int64)
        open_ = np.arange(len(wanted))
        while len(open_):
            rows = self._slots[slots[open_]]
            # Empty and deleted slots are negative: `keys[rows]` is another row's key there, masked by `rows >= 0`.
            hit = (rows >= 0) & (keys[rows] == wanted[open_])
            found[open_[hit]] = rows[hit]
            open_ = open_[~hit & (rows != _EMPTY)]
            slots[open_] = (slots[open_] + 1) & self._mask
        return TableRows(found)

    def insert(self, keys: ItemKeys, rows: TableRows) -> None:
        """Add rows (n,) with distinct keys that are not in the table, given the `keys` of all rows."""
        if 2 * (self._used + len(rows)) > len(self._slots):
            held = self._slots[self._slots >= 0].astype(np.int64)
            self._lay_out(keys, TableRows(np.concatenate([held, rows])))
            return
        self._place(keys, rows)

    def remove(self, keys: ItemKeys, rows: TableRows) -> None:
        """Remove rows (n,), given the `keys` of all rows, theirs still unchanged."""
        slots, open_ = self._home(ItemKeys(keys[rows])), np.arange(len(rows))
        while len(open_):
            here = self._slots[slots[open_]] == rows[open_]
            self._slots[slots[open_[here]]] = _GONE
            open_ = open_[~here]
            slots[open_] = (slots[open_] + 1) & self._mask

    def _lay_out(self, keys: ItemKeys, rows: TableRows) -> None:
        """Rebuild the table with at least four slots per row."""
        size = max(_SMALLEST, 1 << (4 * len(rows) - 1).bit_length())
        self._slots = np.full(size, _EMPTY, np.int32)
        self._mask, self._shift = size - 1, np.uint64(64 - (size.bit_length() - 1))
        self._used = 0
        self._place(keys, rows)

    def _place(self, keys: ItemKeys, rows: TableRows) -> None:
        slots, open_ = self._home(ItemKeys(keys[rows])), np.arange(len(rows))
        while len(open_):
            at = slots[open_]
            free = self._slots[at] == _EMPTY
            self._slots[at[free]] = rows[open_[free]]  # of several rows on one slot, the last one written stays
            open_ = open_[self._slots[at] != rows[open_]]
            slots[open_] = (slots[open_] + 1) & self._mask
        self._used += len(rows)

    def _home(self, keys: ItemKeys) -> Slots:
        """Return the first probe slot of each key."""
        return ((keys.view(np.uint64) * _MULTIPLIER) >> self._shift).view(np.int64)
