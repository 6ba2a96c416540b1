"""What an export keeps for the next one: the rows that were published, and the lists of an IVF index."""

from dataclasses import dataclass
from typing import Any, Final, Self

import faiss
import numpy as np
import numpy.typing as npt

from contracts import BundleFile, BundleLog, BundleManifest, ItemKeys
from contracts.bundle_files import BundleFiles
from contracts.bundle_rows import BundleRows
from contracts.item_rows import ItemRows
from trainer.export.clusters import Assigned, Clusters, family

__all__ = ["Kept", "have_moved"]

_BLOCK: Final = 1 << 14
"""Rows compared at once: they stay in the processor's cache."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Kept:
    """An IVF index of `vectors` (items, d) and the list of each."""

    clusters: Clusters
    item_rows: ItemRows
    vectors: Floats
    assigned: Assigned

    @classmethod
    def open(cls, log: BundleLog, manifest: BundleManifest) -> Self | None:
        """Read a bundle; None where its index is no IVF index or does not say how it fits."""
        if manifest.index.fit is None:
            return None
        files = BundleFiles(log, manifest)
        rows = BundleRows.read(files)
        index = files.decode(BundleFile.INDEX, lambda data: faiss.deserialize_index(np.frombuffer(data, np.uint8)))
        lists = _lists_of(index, len(rows.vectors))
        index.reset()
        clusters = Clusters(manifest.index.type, index, manifest.index.fit)
        return cls(clusters, rows.item_rows, rows.vectors, clusters.measured(rows.vectors, lists))

    def suits(self, empty: Any, kind: str, wanted: str) -> bool:
        """Say whether the lists can go on: for the same kind of index; of as many lists, where a number is wanted."""
        fit, mine = self.clusters.fit, self.clusters.empty
        if mine.d != empty.d or family(self.clusters.kind) != family(kind):
            return False
        return wanted == "auto" or fit.trained_lists == empty.nlist

    def known(self, keys: ItemKeys, vectors: Floats, bound: float) -> Assigned:
        """Return the lists of items by their keys (n,); -1 for those that are new or have moved (`have_moved`)."""
        rows = self.item_rows.look_up(keys)
        there = np.flatnonzero(rows >= 0)
        rows[there[have_moved(self.vectors, rows[there], vectors, there, bound)]] = -1
        return self.assigned.take(rows)


def have_moved(
    old: Floats, old_rows: npt.NDArray[np.int64], new: Floats, new_rows: npt.NDArray[np.int64], bound: float
) -> npt.NDArray[np.bool_]:
    """Say which vectors (n,), rows of `old` and of `new` in pairs, differ by more than `bound` times their length."""
    far = np.empty(len(old_rows), np.bool_)
    for first in range(0, len(old_rows), _BLOCK):
        at = slice(first, first + _BLOCK)
        before, after = old[old_rows[at]], new[new_rows[at]]
        off, length = _squares(after - before), _squares(before)
        # Not "off > ...": what is not a number has moved, too.
        far[at] = ~(off <= bound * bound * length)
    return far


def _squares(vectors: Floats) -> npt.NDArray[np.float32]:
    squares: npt.NDArray[np.float32] = np.einsum("nd,nd->n", vectors, vectors)
    return squares


def _lists_of(index: Any, rows: int) -> npt.NDArray[np.int64]:
    """Return the list of each row of an IVF index."""
    lists, inverted = np.full(rows, -1, np.int64), index.invlists
    for number in range(index.nlist):
        if size := inverted.list_size(number):
            lists[faiss.rev_swig_ptr(inverted.get_ids(number), size)] = number
    return lists
