"""Where the rows of the item table are: each rank keeps a share of them.

Row ``r`` of a table of ``2^k`` rows has the place ``r * odd mod 2^k``, and each rank keeps a contiguous range of
places. Multiplication by an odd number permutes the places (Knuth, "The Art of Computer Programming", volume 3,
section 6.4: multiplicative hashing), so frequent items, which have low rows, are spread evenly. Whatever is stored in
the order of places can be cut for any number of ranks. When the table doubles, a row's place stays or moves by the old
capacity.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from weir.trainer.items.distinct import distinct_and_places

__all__ = ["Places"]

_ODD: Final = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio."""


@dataclass(frozen=True)
class Places:
    """The places of one of several ranks, in a table of `capacity` rows.

    Raises
    ------
    ValueError
        If several ranks are to share a capacity that is no power of two.
    """

    capacity: int
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.ranks > 1 and self.capacity & (self.capacity - 1):
            raise ValueError(f"capacity = {self.capacity}: {self.ranks} ranks share a power of two only")

    @cached_property
    def cuts(self) -> Tensor:
        """Where the ranges of all ranks start, and where the last one ends, (ranks + 1,)."""
        return torch.arange(self.ranks + 1) * self.capacity // self.ranks

    @cached_property
    def here(self) -> range:
        """The places of this rank."""
        return range(*self.cuts[self.rank : self.rank + 2].tolist())

    def of(self, rows: Tensor) -> Tensor:
        """Return the places of rows, of their shape."""
        return rows * (_ODD % self.capacity) & (self.capacity - 1)

    def rows(self, places: Tensor) -> Tensor:
        """Return the rows at places, of their shape."""
        return places * pow(_ODD, -1, self.capacity) & (self.capacity - 1)

    def key(self, rows: Tensor) -> Tensor:
        """Return numbers in the order in which rows come from ranks: their places, or themselves for a single rank."""
        return rows if self.ranks == 1 else self.of(rows)

    def distinct(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distinct ones (n,) among rows (m,), ascending by `key`, and where each row is among them, (m,)."""
        keys, place = distinct_and_places(self.key(rows))
        return (keys if self.ranks == 1 else self.rows(keys)), place

    def local(self, rows: Tensor) -> Tensor:
        """Return where rows are among this rank's lines; a number that no line has for rows that are elsewhere.

        A single rank keeps all rows in their own order, and computes nothing.
        """
        return rows if self.ranks == 1 else self.of(rows) - self.here.start

    def rows_at(self, lines: Tensor) -> Tensor:
        """Return the rows of this rank's lines, of their shape: the inverse of `local`."""
        return lines if self.ranks == 1 else self.rows(lines + self.here.start)

    def own(self, rows: Tensor) -> Tensor:
        """Return those of rows (n,) that this rank keeps, as where they are among them."""
        if self.ranks == 1:
            return torch.arange(len(rows), device=rows.device)
        local = self.local(rows)
        return torch.nonzero((local >= 0) & (local < len(self.here)))[:, 0]
