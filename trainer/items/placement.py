"""Placement of the rows of the item table on ranks, the rows in use, and sorting of integers.

Row ``r`` of a table of ``2^k`` rows has the place ``r * odd mod 2^k``, and each rank keeps a contiguous range of
places. Multiplication by an odd number permutes the places, so frequent items, which have low rows, are spread evenly.
Arrays stored by place can be cut for any number of ranks. When the table doubles, a row's place stays or moves by the
old capacity.

On a CPU, integers are sorted by NumPy, which uses vector instructions.

Source: Knuth, "The Art of Computer Programming", volume 3, section 6.4 (multiplicative hashing).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.contracts.base.arrays import ascending
from weir.trainer.items.rows import FIRST_ITEM, TableRows

__all__ = ["LiveRows", "Places", "distinct", "distinct_and_counts", "distinct_and_places", "order_of", "where"]


_ODD: Final = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio."""


def distinct(numbers: Tensor) -> Tensor:
    """Return the distinct values (n,) of integers (m,), ascending."""
    values: Tensor = torch.unique(numbers) if numbers.is_cuda else torch.from_numpy(ascending(numbers.numpy()))
    return values


def distinct_and_counts(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct values (n,) of integers (m,), ascending, and the count of each, (n,)."""
    ordered = numbers.sort().values if numbers.is_cuda else torch.from_numpy(np.sort(numbers.numpy()))
    return cast(tuple[Tensor, Tensor], torch.unique_consecutive(ordered, return_counts=True))


def distinct_and_places(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct values (n,) of integers (m,), ascending, and the index of each input in them, (m,).

    Integers must lie in [0, 2^62 / m). All results are int64.
    """
    if numbers.is_cuda:
        return cast(tuple[Tensor, Tensor], torch.unique(numbers.long(), return_inverse=True))
    ordered, order = _ordered(numbers)
    values, place = torch.unique_consecutive(ordered, return_inverse=True)
    return values, torch.empty_like(place).scatter_(0, order, place)


def order_of(numbers: Tensor) -> Tensor:
    """Return the stable argsort (m,) of integers (m,) in [0, 2^62 / m)."""
    return torch.sort(numbers, stable=True).indices if numbers.is_cuda else _ordered(numbers)[1]


def _ordered(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers sorted, and their stable argsort, on the CPU."""
    # Each value is sorted with its position in the low bits: cheaper than an argsort, or a search afterwards.
    bits = len(numbers).bit_length()
    packed = torch.from_numpy(np.sort(torch.arange(len(numbers)).add_(numbers, alpha=1 << bits).numpy()))
    return packed >> bits, packed & ((1 << bits) - 1)


def where(mask: Tensor) -> Tensor:
    """Return the ascending positions (n,) at which a mask (m,) is True."""
    return torch.nonzero(mask)[:, 0] if mask.is_cuda else torch.from_numpy(np.flatnonzero(mask.numpy()))


@dataclass(frozen=True)
class Places:
    """Maps the rows of a table of `capacity` rows to places, and gives one rank of `ranks` its range of places.

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
        """Return the indices in `rows` (n,) of the rows in this rank's shard, (m,)."""
        if self.ranks == 1:
            return torch.arange(len(rows), device=rows.device)
        local = self.local(rows)
        return torch.nonzero((local >= 0) & (local < len(self.here)))[:, 0]


class LiveRows:
    """The V table rows in use, known from the free rows; ``rows[index]`` returns the rows at some positions.

    Parameters
    ----------
    end
        All rows from this one on are free.
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
        """Allocate the `count` lowest free rows; return the rows then in use, and the allocated rows, (count,)."""
        again, free = np.split(self.free, [min(count, len(self.free))])
        end = self.end + count - len(again)
        return LiveRows(end, free), TableRows(np.concatenate([again, np.arange(self.end, end)]))

    def freed(self, rows: TableRows) -> "LiveRows":
        """Return the rows still in use after `rows` (n,), ascending, are freed."""
        free = np.insert(self.free, np.searchsorted(self.free, rows), rows)
        return LiveRows(self.end, free)
