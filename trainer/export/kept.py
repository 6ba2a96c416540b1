"""The published bundle in memory, for the next export: rows, free rows, and the lists of an IVF index."""

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from weir.contracts import BundleManifest, ItemKeys
from weir.contracts.bundle_rows import BundleRows
from weir.contracts.item_rows import FIRST_ITEM_ROW, ItemRows
from weir.contracts.layers import Layers
from weir.contracts.scratch import in_scratch
from weir.trainer.export.clusters import Assigned, Clusters, family
from weir.trainer.export.content import Content
from weir.trainer.export.searched import ListSearch
from weir.trainer.export.servable import Servable
from weir.trainer.state.published import are_apart

__all__ = ["ByRow", "Kept", "Lists", "have_moved", "rows_of"]

_BLOCK: Final = 1 << 14
"""Rows compared at a time: they fit in the processor's cache."""

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ByRow:
    """The list of each row of an index, and the cosine of its vector with the list's centroid; immutable."""

    lists: Layers[np.int32]
    cosines: Layers[np.float32]

    @classmethod
    def of(cls, assigned: Assigned) -> Self:
        """Build it from the assignments of all rows, in order."""
        return cls(Layers.of(in_scratch(assigned.lists)), Layers.of(in_scratch(assigned.cosines)))

    def take(self, rows: Rows) -> Assigned:
        """Return the assignments of rows (n,) in use; row -1 gives list -1 and cosine 0."""
        known = rows >= 0
        lists, cosines = np.full(len(rows), -1, np.int32), np.zeros(len(rows), np.float32)
        lists[known], cosines[known] = self.lists[rows[known]], self.cosines[rows[known]]
        return Assigned(lists, cosines)

    def merged(self) -> "ByRow":
        """Return a copy without layers."""
        return ByRow(Layers.of(self.lists.merged(-1)), Layers.of(self.cosines.merged(0.0)))

    def replaced(self, rows: Rows, assigned: Assigned, gone: Rows) -> "ByRow":
        """Return a version without the rows `gone`, and with new assignments of `rows` (m,), existing or new."""
        lists = self.lists.replaced(rows, assigned.lists, gone)
        return ByRow(lists, self.cosines.replaced(rows, assigned.cosines, gone))


@dataclass(frozen=True, eq=False)
class Lists:
    """The lists of an IVF index, the items by row that they were assigned for, and the list of each row."""

    clusters: Clusters
    item_rows: ItemRows
    vectors: Layers[np.float32]
    assigned: ByRow

    def suits(self, empty: Any, kind: str, wanted: str) -> bool:
        """Return whether the lists can be reused: for the same kind of index and, unless ``auto``, number of lists."""
        fit, mine = self.clusters.fit, self.clusters.empty
        if mine.d != empty.d or family(self.clusters.kind) != family(kind):
            return False
        return wanted == "auto" or fit.trained_lists == empty.nlist

    def known(self, keys: ItemKeys, vectors: Floats, bound: float) -> Assigned:
        """Return the lists of items by their keys (n,); -1 for new and moved items (`have_moved`)."""
        rows = rows_of(self.item_rows, keys)
        there = np.flatnonzero(rows >= 0)
        rows[there[have_moved(self.vectors, rows[there], vectors, there, bound)]] = -1
        return self.assigned.take(rows)


@dataclass(frozen=True, eq=False)
class Kept:
    """The newest bundle in memory; `free` are its rows without an item, ascending.

    `lists` is None if its index has no lists that can be kept.
    """

    manifest: BundleManifest
    rows: BundleRows
    free: Rows
    lists: Lists | None

    @classmethod
    def of(cls, servable: Servable) -> Self:
        """Build it from a servable bundle; without a recorded fit of the index, no lists are kept."""
        manifest, rows, fit = servable.manifest, servable.rows, servable.manifest.index.fit
        live, index, is_free = rows.live, servable.index, np.ones(len(rows), np.bool_)
        is_free[live] = False
        free = np.flatnonzero(is_free)
        if fit is None or not isinstance(index, ListSearch):
            return cls(manifest, rows, free, None)
        clusters, lists = Clusters(manifest.index.type, index.empty(), fit), index.lists_of(len(rows))
        cosines = np.zeros(len(rows), np.float32)
        for first in range(0, len(live), _BLOCK):
            some = live[first : first + _BLOCK]
            cosines[some] = clusters.measured(rows.vectors[some], lists[some]).cosines
        by_row = ByRow.of(Assigned(lists, cosines))
        return cls(manifest, rows, free, Lists(clusters, rows.item_rows, rows.vectors, by_row))

    def moved(self, rows: Rows, content: Content, items: Rows, bound: float) -> npt.NDArray[np.bool_]:
        """Return which of a content's `items` (n,) differ from their published `rows` (n,), in vector or embedding."""
        vectors = have_moved(self.rows.vectors, rows, content.vectors, items, bound)
        first = FIRST_ITEM_ROW
        return vectors | have_moved(self.rows.embeddings, rows + first, content.embeddings, items + first, bound)


def rows_of(item_rows: ItemRows, keys: ItemKeys) -> Rows:
    """Return the rows of keys (n,); -1 for new ones."""
    return np.asarray(item_rows.look_up(keys), np.int64)


def have_moved(
    old: Layers[np.float32], old_rows: Rows, new: Floats, new_rows: Rows, bound: float
) -> npt.NDArray[np.bool_]:
    """Return which of paired rows of `old` and `new` vectors, (n,), differ (`are_apart`)."""
    far = np.empty(len(old_rows), np.bool_)
    for first in range(0, len(old_rows), _BLOCK):
        at = slice(first, first + _BLOCK)
        far[at] = are_apart(old[old_rows[at]], new[new_rows[at]], bound)
    return far
