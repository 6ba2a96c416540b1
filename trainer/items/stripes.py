"""Sharding of item data other than embeddings: row modulo ranks, so rows stay when the table grows."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weir.trainer.items.rows import TableRows

__all__ = ["Stripes"]

Lines = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Stripes:
    """The rows of one rank as local lines; for a single rank, lines equal rows."""

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
        kept: npt.NDArray[np.bool_] = self.owners(rows) == self.rank
        return kept

    def lines(self, rows: TableRows) -> Lines:
        """Return the lines (n,) of rows owned by this rank."""
        return rows // self.ranks

    def rows(self, lines: Lines) -> TableRows:
        """Return the rows (n,) of lines of this rank."""
        return TableRows(lines * self.ranks + self.rank)
