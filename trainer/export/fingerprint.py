"""A fingerprint of what all rows of the item table hold, kept up to date by the rows that were touched.

Each row has a hash of its item's key and embedding; the fingerprint is their sum modulo 2^64. So it follows from the
items alone, in whatever order they came, and a touched row costs a subtraction and an addition.
"""

from typing import Final, Self

import numpy as np
import numpy.typing as npt
import xxhash

from contracts import PADDING_KEY, ItemKeys
from contracts.scratch import zeros_in_scratch
from trainer.items.rows import TableRows

__all__ = ["Fingerprint", "Hashes", "hashes_of"]

_BLOCK: Final = 1 << 16
"""Rows hashed at a time: what Python needs of numbers is several times what an array does."""

Floats = npt.NDArray[np.float32]
Hashes = npt.NDArray[np.uint64]


class Fingerprint:
    """What table rows held when they were last looked at: the `keys` (capacity,) of their items, and a hash of each.

    Parameters
    ----------
    capacity
        Rows of the table; at first none holds an item.
    """

    def __init__(self, capacity: int) -> None:
        # Zeros are `PADDING_KEY`.
        self.keys, self._hashes = _zeros(capacity)
        self._total = 0

    @classmethod
    def of(cls, capacity: int, rows: TableRows, keys: ItemKeys, hashes: Hashes) -> Self:
        """Return that of a whole table, whose items own `rows` (n,), with `keys` (n,) and `hashes_of` them, (n,)."""
        found = cls(capacity)
        found.keys[rows], found._hashes[rows] = keys, hashes
        found._total = int(hashes.sum(dtype=np.uint64))
        return found

    @property
    def value(self) -> int:
        """The sum of all hashes, below 2^64."""
        return self._total

    def update(self, touched: TableRows, rows: TableRows, keys: ItemKeys, hashes: Hashes) -> ItemKeys:
        """Look at the `touched` rows again; return the keys of items that these do not hold any more, (m,).

        Of the touched rows, items own `rows` (n,), ascending, with `keys` (n,) and `hashes_of` them, (n,).
        """
        before, then = self.keys[touched], self._sum(touched)
        self.keys[touched], self._hashes[touched] = PADDING_KEY, 0
        self.keys[rows], self._hashes[rows] = keys, hashes
        self._total = (self._total + self._sum(touched) - then) % 2**64
        return ItemKeys(before[(before != PADDING_KEY) & (before != self.keys[touched])])

    def grow(self, capacity: int) -> None:
        """Append rows without an item, up to `capacity`."""
        keys, hashes, known = self.keys, self._hashes, len(self.keys)
        if capacity > known:
            self.keys, self._hashes = _zeros(capacity)
            self.keys[:known], self._hashes[:known] = keys, hashes

    def _sum(self, rows: TableRows) -> int:
        return int(self._hashes[rows].sum(dtype=np.uint64))


def _zeros(capacity: int) -> tuple[ItemKeys, Hashes]:
    """Return keys and hashes (capacity,) as mapped files: between exports nobody reads them."""
    return ItemKeys(zeros_in_scratch(capacity, np.int64)), zeros_in_scratch(capacity, np.uint64)


def hashes_of(keys: ItemKeys, embeddings: Floats) -> Hashes:
    """Return a hash of each embedding (n, d), seeded with its item's key."""
    found = np.empty(len(keys), np.uint64)
    for first in range(0, len(keys), _BLOCK):
        at = slice(first, first + _BLOCK)
        lines, seeds = np.ascontiguousarray(embeddings[at]), keys[at].view(np.uint64).tolist()
        hashes = (xxhash.xxh3_64_intdigest(line, seed) for line, seed in zip(lines, seeds, strict=True))
        found[at] = np.fromiter(hashes, np.uint64, len(seeds))
    return found
