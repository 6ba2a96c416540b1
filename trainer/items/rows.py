"""Rows of the item table: the special rows, sharding by row number, and tracking of changed rows."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NewType

import numpy as np
import numpy.typing as npt

from weir.contracts.base.arrays import ascending

__all__ = ["FIRST_ITEM", "PADDING", "SHARED", "Reader", "RowSharding", "TableRows", "TouchedRows", "no_rows"]


TableRows = NewType("TableRows", npt.NDArray[np.int64])
"""Rows of the item table, of any shape; not to be confused with index rows (`weir.contracts.IndexRows`)."""

PADDING: Final = 0
"""The row of padding in histories; zeros, never trained."""

SHARED: Final = 1
"""The row shared by all items without their own row."""

FIRST_ITEM: Final = 2


Lines = npt.NDArray[np.int64]


def no_rows() -> TableRows:
    """Return an empty array of rows, (0,)."""
    return TableRows(np.empty(0, np.int64))


class Reader(IntEnum):
    """A consumer of changed rows; changes are tracked for each reader separately. The values are bits.

    `SNAPSHOT` exists only while a bundle is built from an earlier snapshot, and then replaces `BUNDLE`.
    """

    CHECKPOINT = 1
    BUNDLE = 2
    SNAPSHOT = 4


class TouchedRows:
    """Tracks the rows changed since the last `clear` of each reader; a call costs O(changed rows).

    `SNAPSHOT` is tracked only from its first `clear` on.

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
        """Readers that are tracked."""
        return tuple(self._parts)

    def mark(self, rows: npt.NDArray[np.int64], readers: Iterable[Reader] | None = None) -> None:
        """Mark rows (n,), repeated or not, as changed for the given readers, or all."""
        for reader in self.readers if readers is None else readers:
            parts = self._parts[reader]
            new = rows[self._marked[rows] & reader == 0]
            if len(new):
                self._marked[new] |= np.uint8(reader)
                parts.append(new)

    def grow(self, capacity: int) -> None:
        """Append unchanged rows up to `capacity`."""
        self._marked = np.pad(self._marked, (0, capacity - len(self._marked)))

    def rows(self, reader: Reader) -> TableRows:
        """Return the changed rows, ascending, (n,)."""
        parts = self._parts.get(reader)
        return TableRows(ascending(np.concatenate(parts))) if parts else no_rows()

    def clear(self, reader: Reader) -> None:
        """Mark all rows as unchanged for a reader."""
        for part in self._parts.get(reader, ()):
            self._marked[part] &= np.uint8(~reader & 0xFF)
        self._parts[reader] = []

    def replace(self, reader: Reader, other: Reader) -> None:
        """Replace a reader's rows by the rows of another reader, which is dropped."""
        rows = self.rows(other)
        self.clear(reader)
        self.clear(other)
        del self._parts[other]
        self.mark(rows, [reader])


@dataclass(frozen=True)
class RowSharding:
    """Sharding by row number: row r is kept by rank r % ranks, at its line (local position) r // ranks."""

    rank: int = 0
    ranks: int = 1

    def count(self, capacity: int) -> int:
        """Return the number of this rank's lines in a table of `capacity` rows."""
        return len(range(self.rank, capacity, self.ranks))

    def owners(self, rows: TableRows) -> npt.NDArray[np.int64]:
        """Return the owning rank of each row, (n,)."""
        return rows % self.ranks

    def own(self, rows: TableRows) -> npt.NDArray[np.bool_]:
        """Return for each of rows (n,) whether this rank owns it."""
        own: npt.NDArray[np.bool_] = self.owners(rows) == self.rank
        return own

    def lines(self, rows: TableRows) -> Lines:
        """Return the lines (n,) of rows owned by this rank."""
        return rows // self.ranks

    def rows(self, lines: Lines) -> TableRows:
        """Return the rows (n,) of lines of this rank."""
        return TableRows(lines * self.ranks + self.rank)
