"""Which rank keeps what is known of a row besides its embedding: one row in W, which stays when the table grows."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weir.trainer.items.rows import TableRows

__all__ = ["Stripes"]

Lines = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Stripes:
    """The rows of one of several ranks, as lines: the rows of a single rank are its lines."""

    rank: int = 0
    ranks: int = 1

    def count(self, capacity: int) -> int:
        """Return the lines of this rank, of a table with so many rows."""
        return len(range(self.rank, capacity, self.ranks))

    def owners(self, rows: TableRows) -> npt.NDArray[np.int64]:
        """Return the rank of each row, (n,)."""
        return rows % self.ranks

    def own(self, rows: TableRows) -> npt.NDArray[np.bool_]:
        """Say of each of rows (n,) whether this rank keeps it."""
        kept: npt.NDArray[np.bool_] = self.owners(rows) == self.rank
        return kept

    def lines(self, rows: TableRows) -> Lines:
        """Return the lines (n,) of rows that this rank keeps."""
        return rows // self.ranks

    def rows(self, lines: Lines) -> TableRows:
        """Return the rows (n,) of lines of this rank."""
        return TableRows(lines * self.ranks + self.rank)
