"""The most popular items of a bundle, without sorting all of them again when some change."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from weir.contracts import IndexRows
from weir.contracts.layers import Layers

__all__ = ["Popular"]


@dataclass(frozen=True, eq=False)
class Popular:
    """Ranks rows by their popularity, minus infinity for those without an item.

    `order` (n,) are the rows of the base that hold an item, from the most popular down; versions on the same base share
    it.
    """

    popularity: Layers[np.float64]
    order: IndexRows = field(repr=False)

    @classmethod
    def of(cls, popularity: Layers[np.float64], before: "Popular | None" = None) -> "Popular":
        """Rank rows; nothing of the base is sorted again where the version `before` has the same one."""
        if before is not None and before.popularity.base is popularity.base:
            return cls(popularity, before.order)
        order, items = np.argsort(-popularity.base, kind="stable"), np.count_nonzero(popularity.base > -np.inf)
        return cls(popularity, IndexRows(order[:items]))

    def first(self, count: int) -> IndexRows:
        """Return the `count` most popular rows, or all there are; of equally popular ones lower rows first."""
        rows = np.concatenate([self._early(count), self._late[:count]])
        return IndexRows(rows[_ranked(rows, self.popularity[rows])[:count]])

    def _early(self, count: int) -> npt.NDArray[np.int64]:
        """Return the first rows that are as they are in the base."""
        fetched = count
        while True:
            rows = self.order[:fetched]
            rows = rows[self.popularity.in_base(rows)]
            if len(rows) >= count or fetched >= len(self.order):
                return rows[:count]
            fetched *= 2

    @cached_property
    def _late(self) -> npt.NDArray[np.int64]:
        """The rows that are not, in their order."""
        over = self.popularity.over
        live = over.values > -np.inf
        rows, popularity = over.keys[live], over.values[live]
        return rows[_ranked(rows, popularity)]


def _ranked(rows: npt.NDArray[np.int64], popularity: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.lexsort((rows, -popularity))
