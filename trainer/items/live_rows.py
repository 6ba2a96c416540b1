"""Rows in use, represented by the free rows instead of a list of all."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.trainer.items.places import Places
from weir.trainer.items.rows import FIRST_ITEM, TableRows

__all__ = ["LiveRows"]


class LiveRows:
    """The V rows in use: from the first item row to before `end`, except `free` ones; ``rows[index]`` selects some.

    Parameters
    ----------
    end
        All rows from here on are free.
    free
        Free rows below `end`, ascending, (f,).
    """

    def __init__(self, end: int = FIRST_ITEM, free: npt.NDArray[np.int64] | None = None) -> None:
        self.end, self.free = end, np.empty(0, np.int64) if free is None else free
        # For each free row, the number of rows in use before it.
        self._before = torch.from_numpy(self.free - FIRST_ITEM - np.arange(len(self.free)))

    def __len__(self) -> int:
        return self.end - FIRST_ITEM - len(self.free)

    def __getitem__(self, index: Tensor) -> Tensor:
        """Return the rows at positions `index` in [0, V), in its shape and on its device."""
        first = index + FIRST_ITEM
        if not len(self.free):
            return first
        return first + torch.searchsorted(self._before.to(index.device), index.contiguous(), right=True)

    def every(self) -> TableRows:
        """Return all rows in use, ascending, (V,)."""
        return TableRows(np.delete(np.arange(FIRST_ITEM, self.end), self.free - FIRST_ITEM))

    def at(self, places: Places) -> Tensor:
        """Return the rows in use of one shard, in its local order, (v,)."""
        if places.ranks == 1:
            return torch.from_numpy(self.every())
        rows = places.rows_at(torch.arange(len(places.here)))
        return rows[self.among(rows)]

    def among(self, rows: Tensor) -> Tensor:
        """Return for rows of any shape whether they are in use."""
        owned = (rows >= FIRST_ITEM) & (rows < self.end)
        if not len(self.free):
            return owned
        free = torch.from_numpy(self.free).to(rows.device)
        return owned & (free[torch.searchsorted(free, rows.contiguous()).clamp_(max=len(free) - 1)] != rows)

    def taken(self, count: int) -> tuple["LiveRows", TableRows]:
        """Allocate the `count` lowest free rows; return the new state, and these rows, ascending, (count,)."""
        again, free = np.split(self.free, [min(count, len(self.free))])
        end = self.end + count - len(again)
        return LiveRows(end, free), TableRows(np.concatenate([again, np.arange(self.end, end)]))

    def freed(self, rows: TableRows) -> "LiveRows":
        """Return the state after ascending rows (n,) in use were freed."""
        free = np.insert(self.free, np.searchsorted(self.free, rows), rows)
        return LiveRows(self.end, free)
