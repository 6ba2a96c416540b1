"""Exact search over a bundle changed by deltas, without a copy of its vectors."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.contracts import IndexRows
from weir.contracts.layers import Layers
from weir.serving.index import Exact, ExactIndex, Found

__all__ = ["LayeredIndex", "exact_index"]

Floats = npt.NDArray[np.float32]

_MARGIN: Final = 16
"""Vectors fetched on top of the number expected from the share of outdated ones."""


def exact_index(vectors: Layers[np.float32]) -> Exact:
    """Return exact search over the rows of a bundle."""
    changed = len(vectors.over) or len(vectors.gone)
    return LayeredIndex(vectors) if changed else ExactIndex(vectors.base)


@dataclass(frozen=True)
class LayeredIndex:
    """Searches base and changed vectors separately, and merges the results.

    The base still holds outdated vectors: a search fetches more rows from it, and doubles their number while too few
    are current. The result is that of a search over one array of the current vectors, up to ties.
    """

    vectors: Layers[np.float32]

    @cached_property
    def _late(self) -> ExactIndex:
        return ExactIndex(self.vectors.over.values)

    @property
    def lists(self) -> int:
        """0: there are no lists, every vector is compared."""
        return 0

    def search(self, queries: Floats, k: int, nprobe: int = 0) -> Found:  # noqa: ARG002 - no lists to choose from
        """Return the best `k` rows for each query."""
        base, late = self._search_base(queries, k), self._late.search(queries, k)
        scores = np.concatenate([base.scores, late.scores], axis=1)
        rows = np.concatenate([base.rows, self.vectors.over.keys[late.rows]], axis=1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, : min(k, self.vectors.left + len(self.vectors.over))]
        return Found(np.take_along_axis(scores, best, 1), IndexRows(np.take_along_axis(rows, best, 1)))

    def _search_base(self, queries: Floats, k: int) -> Found:
        """Return up to `k` current rows of the base for each query, padded with row -1 at minus infinity."""
        base, count, left = ExactIndex(self.vectors.base), len(self.vectors.base), self.vectors.left
        wanted = min(k, left)
        fetched = min(int(wanted * count / max(left, 1)) + _MARGIN, count)
        while True:
            found = base.search(queries, fetched)
            current = self.vectors.in_base(found.rows)
            if fetched == count or (current.sum(axis=1) >= wanted).all():
                break
            fetched = min(2 * fetched, count)
        scores = np.where(current, found.scores, -np.inf).astype(np.float32)
        order = np.argsort(~current, axis=1, kind="stable")[:, :wanted]
        rows = np.where(current, found.rows, -1)
        return Found(np.take_along_axis(scores, order, 1), IndexRows(np.take_along_axis(rows, order, 1)))

    def reaches(self, k: int, nprobe: int = 0) -> bool:  # noqa: ARG002 - it has no limits
        """Return True: any number of rows can be ranked."""
        return True

    def cost(self, nprobe: int = 0) -> float:  # noqa: ARG002 - no lists to choose from
        """Estimate a query's search in microseconds of one core."""
        return ExactIndex(self.vectors.base).cost() + self._late.cost()

    def search_among(self, queries: Floats, k: int, rows: IndexRows) -> Found:
        """Return the best `k` of the given distinct `rows` for each query."""
        places = ExactIndex(np.ascontiguousarray(self.vectors[rows])).search(queries, k)
        return Found(places.scores, IndexRows(rows[places.rows]))
