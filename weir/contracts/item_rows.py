"""From item keys to the rows of a bundle: of its index, and of the embeddings that the user tower reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.contracts.bundle_manifest import IndexRows
from weir.contracts.keys import ItemKeys
from weir.contracts.overlay import Overlay

__all__ = ["FIRST_ITEM_ROW", "ItemRows", "tower_rows"]

_PADDING_ROW: Final = 0
FIRST_ITEM_ROW: Final = 2
"""Row of ``embeddings.npy`` with the embedding of index row 0; see `weir.contracts.bundle.BundleFile`."""


@dataclass(frozen=True, eq=False)
class ItemRows:
    """The `count` items of a bundle: at first `keys` (n,), ascending, with the index row of each, `rows` (n,).

    `later` has the rows of keys that have come since, or have another row; -1: they are gone.
    """

    keys: ItemKeys
    rows: IndexRows
    later: Overlay[np.int64]
    count: int

    @classmethod
    def of(cls, keys: ItemKeys, rows: IndexRows | None = None) -> "ItemRows":
        """Index the keys (items,) of ``items.parquet`` by their `rows` (items,); by default these are all, in order."""
        order = np.argsort(keys)
        places = order if rows is None else rows[order]
        return cls(ItemKeys(keys[order]), IndexRows(places), Overlay.empty(places), len(keys))

    def __len__(self) -> int:
        return self.count

    def without(self, keys: ItemKeys) -> "ItemRows":
        """Return these items without some of them, by their distinct keys (n,)."""
        gone = self.later.replaced(keys, np.full(len(keys), -1))
        return ItemRows(self.keys, self.rows, gone, self.count - len(keys))

    def including(self, keys: ItemKeys, rows: IndexRows) -> "ItemRows":
        """Return these items and further ones, by their distinct keys (n,), at their rows (n,)."""
        return ItemRows(self.keys, self.rows, self.later.replaced(keys, rows), self.count + len(keys))

    def look_up(self, keys: ItemKeys) -> IndexRows:
        """Return the index row of each key, in the shape of `keys`; -1 for padding and for unknown items."""
        found = np.full(keys.shape, -1, np.int64)
        if len(self.keys):
            place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            found = np.where(self.keys[place] == keys, self.rows[place], -1)
        if len(self.later):
            place, late = self.later.find(keys)
            found = np.where(late, self.later.values[place], found)
        return IndexRows(found)

    def tower_inputs(
        self, histories: ItemKeys, newest: int, length: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return what the user tower reads of histories (n, any length), left-padded, oldest first.

        The `newest` items count, at most `length`, of those that the bundle has: a vector that nothing was learned for
        says less than the item before it. Returned are their rows in ``embeddings.npy``, (n, length), and the mask
        (n, length), True for items.
        """
        rows = np.full((len(histories), length), _PADDING_ROW, np.int64)
        found = self.look_up(histories)
        # Known items move to the right, in their order.
        order = np.argsort(found >= 0, axis=1, kind="stable")
        known = np.take_along_axis(found, order, axis=1)[:, -newest:]
        rows[:, length - known.shape[1] :] = np.where(known >= 0, known + FIRST_ITEM_ROW, _PADDING_ROW)
        return rows, rows != _PADDING_ROW


def tower_rows(histories: Sequence[IndexRows], length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return what `ItemRows.tower_inputs` does, of the rows of known items, at most `length` each."""
    rows = np.full((len(histories), length), _PADDING_ROW, np.int64)
    for row, known in zip(rows, histories, strict=True):
        row[length - len(known) :] = known + FIRST_ITEM_ROW
    return rows, rows != _PADDING_ROW
