"""Popularity ranking of a bundle's items, updated by deltas without a full sort."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from weir.contracts import IndexRows
from weir.contracts.layers import Layers

__all__ = ["Popular"]


@dataclass(frozen=True, eq=False)
class Popular:
    """Ranks rows by their popularity, which is minus infinity for rows without an item.

    `order` (n,) are the rows of the base that hold an item, most popular first; versions on the same base share it.
    """

    popularity: Layers[np.float64]
    order: IndexRows = field(repr=False)

    @classmethod
    def of(cls, popularity: Layers[np.float64], before: "Popular | None" = None) -> "Popular":
        """Rank rows; the base is only sorted if the version `before` has another one."""
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
