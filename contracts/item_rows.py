"""From item keys to the rows of a bundle: of its index, and of the embeddings that the user tower reads."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from contracts.bundle_manifest import IndexRows
from contracts.keys import PADDING_KEY, ItemKeys

__all__ = ["FIRST_ITEM_ROW", "ItemRows"]

_PADDING_ROW: Final = 0
_UNKNOWN_ROW: Final = 1
FIRST_ITEM_ROW: Final = 2
"""Row of ``embeddings.npy`` with the embedding of index row 0; see `contracts.bundle.BundleFile`."""


@dataclass(frozen=True, eq=False)
class ItemRows:
    """The items of a bundle: `keys` (items,), ascending, and the index row of each, `rows` (items,)."""

    keys: ItemKeys
    rows: IndexRows

    @classmethod
    def of(cls, keys: ItemKeys) -> "ItemRows":
        """Index the keys (items,) of ``items.parquet``, which are in order of index row."""
        order = np.argsort(keys)
        return cls(ItemKeys(keys[order]), IndexRows(order))

    def replaced(self, gone: ItemKeys, came: ItemKeys, rows: IndexRows) -> "ItemRows":
        """Return these items without the keys `gone`, and with the keys `came` (n,) at their `rows` (n,)."""
        leaving = np.searchsorted(self.keys, gone)
        left, left_rows = np.delete(self.keys, leaving), np.delete(self.rows, leaving)
        order = np.argsort(came)
        places = np.searchsorted(left, came[order])
        keys = ItemKeys(np.insert(left, places, came[order]))
        return ItemRows(keys, IndexRows(np.insert(left_rows, places, rows[order])))

    def look_up(self, keys: ItemKeys) -> IndexRows:
        """Return the index row of each key, in the shape of `keys`; -1 for padding and for unknown items."""
        if not len(self.keys):
            return IndexRows(np.full(keys.shape, -1, np.int64))
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return IndexRows(np.where(self.keys[place] == keys, self.rows[place], -1))

    def tower_inputs(self, histories: ItemKeys, length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return what the user tower reads of histories (n, any length), left-padded, oldest first.

        Only the newest `length` items count. Returned are their rows in ``embeddings.npy``, (n, length), where unknown
        items share one row, and the mask (n, length), True for real items.
        """
        keys = ItemKeys(np.full((len(histories), length), PADDING_KEY, np.int64))
        newest = histories[:, -length:]
        keys[:, length - newest.shape[1] :] = newest
        rows, real = self.look_up(keys), keys != PADDING_KEY
        return np.where(rows >= 0, rows + FIRST_ITEM_ROW, np.where(real, _UNKNOWN_ROW, _PADDING_ROW)), real
