"""Rows of the item table, and which of them have changed."""

from typing import Final, NewType

import numpy as np
import numpy.typing as npt

__all__ = ["FIRST_ITEM", "PADDING", "SHARED", "TableRows", "TouchedRows", "no_rows"]

TableRows = NewType("TableRows", npt.NDArray[np.int64])
"""Rows of the item table, of any shape; the rows of an index are others (`contracts.IndexRows`)."""

PADDING: Final = 0
"""The row of missing history; zeros, never trained."""

SHARED: Final = 1
"""The row of all items that have none of their own."""

FIRST_ITEM: Final = 2


def no_rows() -> TableRows:
    """Return no rows, (0,)."""
    return TableRows(np.empty(0, np.int64))


class TouchedRows:
    """The rows that have changed since the last `clear`; each call costs what was touched, not the table.

    Parameters
    ----------
    capacity
        Rows of the table.
    """

    def __init__(self, capacity: int) -> None:
        self._marked = np.zeros(capacity, np.bool_)
        self._parts: list[npt.NDArray[np.int64]] = []

    def mark(self, rows: npt.NDArray[np.int64]) -> None:
        """Note that rows (n,), repeated or not, have changed."""
        new = rows[~self._marked[rows]]
        if len(new):
            self._marked[new] = True
            self._parts.append(new)

    def grow(self, capacity: int) -> None:
        """Append rows that have not changed, up to `capacity`."""
        self._marked = np.pad(self._marked, (0, capacity - len(self._marked)))

    def rows(self) -> TableRows:
        """Return the rows that have changed, ascending, (n,)."""
        return TableRows(np.unique(np.concatenate(self._parts))) if self._parts else no_rows()

    def clear(self) -> None:
        """Begin again: no row has changed."""
        for part in self._parts:
            self._marked[part] = False
        self._parts = []
