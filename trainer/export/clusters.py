"""The coarse quantiser of an IVF index: trained rarely, kept between exports, and repaired for badly fitting items.

Centroids have length 1 (FAISS trains them so for inner products), so the score of an item with its centroid, divided
by the item's length, is their cosine: how well the list fits the item.
"""

import re
import time
from dataclasses import dataclass
from typing import Any, Final, Self

import faiss
import numpy as np
import numpy.typing as npt

from weir.contracts import IndexFit
from weir.contracts.index_delta import append_lists
from weir.trainer.export.filling import filled
from weir.trainer.state.assigner import Assigned, assign, lengths_of

__all__ = ["Assigned", "Clusters", "family"]

Floats = npt.NDArray[np.float32]

_UNFIT: Final = 0.05
"""Quantile of the cosines at training; items below its value fit badly."""

_BLOCK: Final = 1 << 16
"""Items processed at a time."""

_REPAIR_LISTS: Final = (64, 400)
"""Fewest and most lists that one repair appends."""

_ITEMS_PER_LIST: Final = 8
"""Badly fitting items per appended list."""


def family(kind: str) -> str:
    """Return a factory string without its number of lists, which grows with the catalogue."""
    return re.sub(r"^IVF\d+", "IVF", kind)


@dataclass(frozen=True, eq=False)
class Clusters:
    """A trained IVF index without items (`empty`), and how well its lists fit; `kind` is its factory string."""

    kind: str
    empty: Any
    fit: IndexFit

    @classmethod
    def trained(cls, empty: Any, kind: str, vectors: Floats) -> tuple[Self, Assigned]:
        """Train an index on vectors (n, d), which takes minutes for millions; return it and the vectors' lists."""
        empty.train(vectors)
        fit = IndexFit(trained_at=time.time(), trained_items=len(vectors), trained_lists=empty.nlist, cosine=0.0)
        assigned = cls(kind, empty, fit).assign(vectors)
        cosine = float(np.quantile(assigned.cosines, _UNFIT))
        return cls(kind, empty, fit.model_copy(update={"cosine": cosine})), assigned

    @property
    def lists(self) -> int:
        """Number of lists."""
        return int(self.empty.nlist)

    def centroids(self) -> Floats:
        """Return the centroids, (lists, d)."""
        centroids: Floats = self.empty.quantizer.reconstruct_n(0, self.lists)
        return centroids

    def assign(self, vectors: Floats, chosen: npt.NDArray[np.int64] | None = None) -> Assigned:
        """Return the nearest list of each of the vectors (n, d), or of the `chosen` ones (m,)."""
        return assign(self.empty.quantizer, vectors, chosen)

    def measured(self, vectors: Floats, lists: npt.NDArray[np.int32]) -> Assigned:
        """Return the cosines of vectors (n, d) with the centroids of their known `lists`."""
        centroids, cosines = self.centroids(), np.empty(len(vectors), np.float32)
        for first in range(0, len(vectors), _BLOCK):
            at = slice(first, first + _BLOCK)
            cosines[at] = np.einsum("nd,nd->n", vectors[at], centroids[lists[at]]) / lengths_of(vectors[at])
        return Assigned(lists, cosines)

    def filled(self, vectors: Floats, lists: npt.NDArray[np.int32]) -> Any:
        """Return an index with vectors (n, d) in the given lists (n,), as rows 0 to n - 1; see `filled`."""
        return filled(self.empty, np.arange(len(vectors)), lists, vectors)

    def repaired(self, vectors: Floats, assigned: Assigned) -> tuple["Clusters", Assigned] | None:
        """Append lists for badly fitting vectors, and move into them all of the vectors (n, d) that fit better there.

        Returns the clusters and the lists of all vectors; None if too few vectors fit badly.
        """
        unfit = np.flatnonzero(assigned.cosines < self.fit.cosine)
        least, most = _REPAIR_LISTS
        if len(unfit) < least * _ITEMS_PER_LIST:
            return None
        count = min(max(len(unfit) // _ITEMS_PER_LIST // _ITEMS_PER_LIST, least), most)
        means: Any = faiss.Kmeans(vectors.shape[1], count, spherical=True, seed=1, min_points_per_centroid=1)
        means.train(vectors[unfit])
        added = faiss.IndexFlatIP(vectors.shape[1])
        added.add(means.centroids)
        better = assign(added, vectors)
        moves = better.cosines > assigned.cosines
        lists = np.where(moves, better.lists + np.int32(self.lists), assigned.lists)
        fit = self.fit.model_copy(update={"repairs": self.fit.repairs + 1})
        return self._with(means.centroids, fit), Assigned(lists, np.maximum(better.cosines, assigned.cosines))

    def _with(self, centroids: Floats, fit: IndexFit) -> "Clusters":
        empty: Any = faiss.clone_index(self.empty)
        append_lists(empty, centroids)
        return Clusters(re.sub(r"^IVF\d+", f"IVF{empty.nlist}", self.kind), empty, fit)
