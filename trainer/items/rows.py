"""Rows of the item table, and which of them have changed."""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NewType

import numpy as np
import numpy.typing as npt

from weir.contracts.ascending import ascending

__all__ = ["FIRST_ITEM", "PADDING", "SHARED", "Reader", "TableRows", "TouchedRows", "no_rows"]

TableRows = NewType("TableRows", npt.NDArray[np.int64])
"""Rows of the item table, of any shape; the rows of an index are others (`weir.contracts.IndexRows`)."""

PADDING: Final = 0
"""The row of missing history; zeros, never trained."""

SHARED: Final = 1
"""The row of all items that have none of their own."""

FIRST_ITEM: Final = 2


def no_rows() -> TableRows:
    """Return no rows, (0,)."""
    return TableRows(np.empty(0, np.int64))


class Reader(IntEnum):
    """Who asks which rows have changed, and begins again at moments of its own; the values are bits.

    `SNAPSHOT` asks only while a bundle is made of what was read earlier: it takes the place of `BUNDLE` then.
    """

    CHECKPOINT = 1
    BUNDLE = 2
    SNAPSHOT = 4


class TouchedRows:
    """The rows that have changed since each reader's last `clear`; a call costs what was touched, not the table.

    For a reader that comes and goes nothing is noted before its first `clear`.

    Parameters
    ----------
    capacity
        Rows of the table.
    """

    def __init__(self, capacity: int) -> None:
        self._marked = np.zeros(capacity, np.uint8)
        self._parts: dict[Reader, list[npt.NDArray[np.int64]]] = {Reader.CHECKPOINT: [], Reader.BUNDLE: []}

    @property
    def readers(self) -> tuple[Reader, ...]:
        """Those for whom rows are noted."""
        return tuple(self._parts)

    def mark(self, rows: npt.NDArray[np.int64], readers: Iterable[Reader] | None = None) -> None:
        """Note that rows (n,), repeated or not, have changed, for all readers or for some."""
        for reader in self.readers if readers is None else readers:
            parts = self._parts[reader]
            new = rows[self._marked[rows] & reader == 0]
            if len(new):
                self._marked[new] |= np.uint8(reader)
                parts.append(new)

    def grow(self, capacity: int) -> None:
        """Append rows that have not changed, up to `capacity`."""
        self._marked = np.pad(self._marked, (0, capacity - len(self._marked)))

    def rows(self, reader: Reader) -> TableRows:
        """Return the rows that have changed, ascending, (n,)."""
        parts = self._parts.get(reader)
        return TableRows(ascending(np.concatenate(parts))) if parts else no_rows()

    def clear(self, reader: Reader) -> None:
        """Begin again: for this reader, no row has changed."""
        for part in self._parts.get(reader, ()):
            self._marked[part] &= np.uint8(~reader & 0xFF)
        self._parts[reader] = []

    def replace(self, reader: Reader, other: Reader) -> None:
        """Let the rows of a reader be those of another one, who asks no more."""
        rows = self.rows(other)
        self.clear(reader)
        self.clear(other)
        del self._parts[other]
        self.mark(rows, [reader])
