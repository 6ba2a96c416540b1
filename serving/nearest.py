"""Search a bundle's index, probing more lists until every query has enough rows."""

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
"""Items to compare for each excluded one (docs/serving.md, Path of a request)."""


def nearest(bundle: LoadedBundle, queries: Floats, k: int, needed: Int64, nprobe: int = 0) -> Found:
    """Return the best `k` rows for each query (n, dimension), or all items if there are fewer.

    A query whose lists hold fewer rows than it needs, `needed` (n,), is repeated with twice as many lists. If that
    means all lists, or too many for the device, or if a graph walk does not reach enough rows, exact search is used. So
    a query's result does not depend on the others of its batch.
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
    """Return the number of inverted lists to probe with `excluded` items, 0 for the bundle's default.

    Excluded items may fill the nearest lists: the default is doubled until the lists hold `_DEPTH` times as many items
    as are excluded, or all lists are probed.
    """
    lists, own = bundle.index.lists, _own_lists(bundle)
    needed = _DEPTH * excluded * lists / max(1, bundle.items)
    return min(own << math.ceil(math.log2(needed / own)), lists) if needed > own else 0


def _own_lists(bundle: LoadedBundle) -> int:
    """Return the default number of inverted lists to probe."""
    return int(bundle.manifest.index.parameters.get("nprobe", 1))
