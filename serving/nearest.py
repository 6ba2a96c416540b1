"""The search of a bundle's index, which finds as many rows as are wanted wherever there are so many."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.serving.bundle import LoadedBundle
from weir.serving.index import Found

__all__ = ["lists_beyond", "nearest"]

Floats = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

_DEPTH: Final = 16
"""Items to be compared for each excluded one; docs/serving.md has measurements."""


def nearest(bundle: LoadedBundle, queries: Floats, k: int, needed: Int64, nprobe: int = 0) -> Found:
    """Return the best `k` rows for each query (n, dimension), or all items where those are fewer.

    Lists may hold fewer rows than a query needs, `needed` (n,): it visits twice as many, again and again. Where this
    means all lists, or too many for the device, and where a graph has parts that no walk comes to, it is compared with
    every vector. So what it finds in lists does not depend on what others need.
    """
    index = bundle.index
    found = index.search(queries, k, nprobe)
    if (found.rows[:, -1:] >= 0).all():
        return found
    lists, width = nprobe or _own_lists(bundle), found.rows.shape[1]
    while len(short := np.flatnonzero((found.rows >= 0).sum(axis=1) < np.minimum(needed, width))):
        lists *= 2
        if lists >= index.lists or not index.reaches(width, lists):
            found.scores[short], found.rows[short] = bundle.exact.search(queries[short], width)
            break
        found.scores[short], found.rows[short] = index.search(queries[short], width, lists)
    return found


def lists_beyond(bundle: LoadedBundle, excluded: int) -> int:
    """Return how many inverted lists to visit where so many items are left out, 0 for the bundle's own number.

    Excluded items may fill the nearest lists: the own number is doubled until the lists hold `_DEPTH` times as many
    items as are excluded, or are all lists.
    """
    lists, own = bundle.index.lists, _own_lists(bundle)
    needed = _DEPTH * excluded * lists / max(1, bundle.items)
    return min(own << math.ceil(math.log2(needed / own)), lists) if needed > own else 0


def _own_lists(bundle: LoadedBundle) -> int:
    """Return how many inverted lists a search visits that does not say how many."""
    return int(bundle.manifest.index.parameters.get("nprobe", 1))
