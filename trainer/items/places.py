"""Sharding of the embedding rows over ranks by a multiplicative hash of the row.

Row ``r`` of a table of ``2^k`` rows has the place ``r * odd mod 2^k``, and each rank keeps a contiguous range of
places. Multiplication by an odd number permutes the places (Knuth, "The Art of Computer Programming", volume 3,
section 6.4: multiplicative hashing), so frequent items, which have low rows, are spread evenly. Arrays stored by
place can be cut for any number of ranks. When the table doubles, a row's place stays or moves by the old
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
    """The shard of one rank in a table of `capacity` rows.

    Raises
    ------
    ValueError
        If several ranks share a capacity that is not a power of two.
    """

    capacity: int
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.ranks > 1 and self.capacity & (self.capacity - 1):
            raise ValueError(f"capacity = {self.capacity}: {self.ranks} ranks share a power of two only")

    @cached_property
    def cuts(self) -> Tensor:
        """Starts of the ranges of all ranks, and the end of the last, (ranks + 1,)."""
        return torch.arange(self.ranks + 1) * self.capacity // self.ranks

    @cached_property
    def here(self) -> range:
        """The places of this rank."""
        return range(*self.cuts[self.rank : self.rank + 2].tolist())

    def of(self, rows: Tensor) -> Tensor:
        """Return the places of rows, in their shape."""
        return rows * (_ODD % self.capacity) & (self.capacity - 1)

    def rows(self, places: Tensor) -> Tensor:
        """Return the rows at places, in their shape."""
        return places * pow(_ODD, -1, self.capacity) & (self.capacity - 1)

    def key(self, rows: Tensor) -> Tensor:
        """Return the sort keys of rows in shard order: their places, or the rows themselves for a single rank."""
        return rows if self.ranks == 1 else self.of(rows)

    def distinct(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distinct values (n,) of rows (m,), ascending by `key`, and the index of each row in them, (m,)."""
        keys, place = distinct_and_places(self.key(rows))
        return (keys if self.ranks == 1 else self.rows(keys)), place

    def local(self, rows: Tensor) -> Tensor:
        """Return the lines (local positions) of rows; for rows of other ranks, numbers outside the shard.

        A single rank keeps all rows in their own order: lines equal rows.
        """
        return rows if self.ranks == 1 else self.of(rows) - self.here.start

    def rows_at(self, lines: Tensor) -> Tensor:
        """Return the rows of this rank's lines, in their shape: the inverse of `local`."""
        return lines if self.ranks == 1 else self.rows(lines + self.here.start)

    def own(self, rows: Tensor) -> Tensor:
        """Return the positions in `rows` (n,) of those in this rank's shard."""
        if self.ranks == 1:
            return torch.arange(len(rows), device=rows.device)
        local = self.local(rows)
        return torch.nonzero((local >= 0) & (local < len(self.here)))[:, 0]
