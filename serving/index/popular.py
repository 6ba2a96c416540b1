"""The most popular items of a bundle, and sets of its rows."""

from array import array
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from weir.contracts import IndexRows
from weir.contracts.base.arrays import Layers

__all__ = ["NO_ROWS", "Popular", "bits_of", "rows_in", "rowset"]


NO_ROWS: Final = BitMap()


def rowset(rows: npt.NDArray[np.int64]) -> BitMap:
    """Return `rows`, which may repeat, as a set."""
    # Ten times as fast as from the NumPy array, which is read number by number.
    numbers = array("I")
    numbers.frombytes(rows.astype(np.uint32).tobytes())
    return BitMap(numbers)


def rows_in(rows: BitMap) -> IndexRows:
    """Return the rows of a set, ascending."""
    return IndexRows(np.frombuffer(rows.to_array(), np.uint32).astype(np.int64))


def bits_of(rows: IndexRows, size: int) -> npt.NDArray[np.uint8]:
    """Return a bit mask in which `rows` are set: a bit for each of `size` rows, the lowest row first."""
    mask = np.zeros(size, np.bool_)
    mask[rows] = True
    return np.packbits(mask, bitorder="little")


@dataclass(frozen=True, eq=False)
class Popular:
    """Ranks a bundle's rows by their `popularity`, which is minus infinity for rows without an item.

    `order` (n,) are the rows of the base (the complete bundle) that hold an item, most popular first; versions on the
    same base share them.
    """

    popularity: Layers[np.float64]
    order: IndexRows = field(repr=False)

    @classmethod
    def of(cls, popularity: Layers[np.float64], before: "Popular | None" = None) -> "Popular":
        """Rank rows by popularity; `order` is taken from `before`, an earlier version, if that has the same base."""
        if before is not None and before.popularity.base is popularity.base:
            return cls(popularity, before.order)
        order, items = np.argsort(-popularity.base, kind="stable"), np.count_nonzero(popularity.base > -np.inf)
        return cls(popularity, IndexRows(order[:items]))

    def first(self, count: int) -> IndexRows:
        """Return the `count` most popular rows, or all if there are fewer; ties by ascending row."""
        rows = np.concatenate([self._early(count), self._late[:count]])
        return IndexRows(rows[_ranked(rows, self.popularity[rows])[:count]])

    def _early(self, count: int) -> npt.NDArray[np.int64]:
        """Return the `count` most popular rows that deltas did not change."""
        fetched = count
        while True:
            rows = self.order[:fetched]
            rows = rows[self.popularity.in_base(rows)]
            if len(rows) >= count or fetched >= len(self.order):
                return rows[:count]
            fetched *= 2

    @cached_property
    def _late(self) -> npt.NDArray[np.int64]:
        """The rows that deltas changed, most popular first."""
        over = self.popularity.over
        live = over.values > -np.inf
        rows, popularity = over.keys[live], over.values[live]
        return rows[_ranked(rows, popularity)]


def _ranked(rows: npt.NDArray[np.int64], popularity: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.lexsort((rows, -popularity))
