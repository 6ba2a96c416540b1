"""From keys to rows: open addressing in one numpy array, whose slots hold rows only.

Linear probing over whole batches: each round looks at one slot per key that is not found yet, so that the number of
Python steps is the longest probe sequence, not the number of keys. A look-up, an insertion and a removal cost what is
looked up, inserted or removed; now and then all slots are laid out again, after as many changes as there are keys.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from weir.contracts import ItemKeys
from weir.trainer.items.rows import TableRows

__all__ = ["KeyMap"]

_EMPTY: Final = -1
_GONE: Final = -2
"""A slot whose row was removed: a probe goes on over it."""
_SMALLEST: Final = 64
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)

Slots = npt.NDArray[np.int64]


class KeyMap:
    """The rows of keys; the keys themselves are the table's, by row.

    Parameters
    ----------
    keys
        Of all rows, (capacity,).
    rows
        Those whose keys can be found, (n,), with distinct keys.
    """

    def __init__(self, keys: ItemKeys, rows: TableRows) -> None:
        self._lay_out(keys, rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the slots."""
        return self._slots.nbytes

    def find(self, keys: ItemKeys, wanted: ItemKeys) -> TableRows:
        """Return the row of each of the `wanted` keys (n,), -1 where there is none, given the table's `keys`."""
        slots, found = self._home(wanted), np.full(len(wanted), -1, np.int64)
        open_ = np.arange(len(wanted))
        while len(open_):
            rows = self._slots[slots[open_]]
            # The key behind an empty slot is that of another row: it is never looked at.
            hit = (rows >= 0) & (keys[rows] == wanted[open_])
            found[open_[hit]] = rows[hit]
            open_ = open_[~hit & (rows != _EMPTY)]
            slots[open_] = (slots[open_] + 1) & self._mask
        return TableRows(found)

    def insert(self, keys: ItemKeys, rows: TableRows) -> None:
        """Add rows (n,) with distinct keys that cannot be found yet, given the table's `keys`."""
        if 2 * (self._used + len(rows)) > len(self._slots):
            held = self._slots[self._slots >= 0].astype(np.int64)
            self._lay_out(keys, TableRows(np.concatenate([held, rows])))
            return
        self._place(keys, rows)

    def remove(self, keys: ItemKeys, rows: TableRows) -> None:
        """Drop rows (n,), given the table's `keys` as they still are."""
        slots, open_ = self._home(ItemKeys(keys[rows])), np.arange(len(rows))
        while len(open_):
            here = self._slots[slots[open_]] == rows[open_]
            self._slots[slots[open_[here]]] = _GONE
            open_ = open_[~here]
            slots[open_] = (slots[open_] + 1) & self._mask

    def _lay_out(self, keys: ItemKeys, rows: TableRows) -> None:
        """Place rows into slots of their own, at most a quarter of which are used."""
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
        """Return the slot at which the search for each key starts."""
        return ((keys.view(np.uint64) * _MULTIPLIER) >> self._shift).view(np.int64)
