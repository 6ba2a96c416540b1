"""Published bundles in memory: the newest one, to which the next export is compared, and a cache of open bundles."""

import logging
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from weir.contracts import BundleLog, BundleManifest, ItemKeys
from weir.contracts.base.arrays import Layers
from weir.contracts.base.string_arrays import in_scratch
from weir.contracts.bundles.rows import FIRST_ITEM_ROW, BundleRows, ItemRows
from weir.runtime.background import BackgroundTask
from weir.trainer.export.background import beside
from weir.trainer.export.content import Content
from weir.trainer.export.index import Assigned, Clusters, family
from weir.trainer.export.servable import ListSearch, Servable
from weir.trainer.state.published import are_apart
from weir.trainer.step.shuffling import Spool, blocks

__all__ = [
    "ByRow",
    "Lists",
    "OpenBundles",
    "Opened",
    "PublishedSnapshot",
    "have_moved",
    "open_newest",
    "rows_of",
    "train_lists",
]

logger = logging.getLogger(__name__)


_BLOCK: Final = 1 << 14
"""Rows compared at a time: they fit in the processor's cache."""

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


_MOST: Final = 3
"""Size of the cache: the newest, the promoted and the last confirmed bundle."""


@dataclass(frozen=True, eq=False)
class ByRow:
    """For each index row, its list and the cosine of its vector and the list's centroid; immutable."""

    lists: Layers[np.int32]
    cosines: Layers[np.float32]

    @classmethod
    def of(cls, assigned: Assigned) -> Self:
        """Build the table from the assignments of all rows, in order."""
        return cls(Layers.of(in_scratch(assigned.lists)), Layers.of(in_scratch(assigned.cosines)))

    def take(self, rows: Rows) -> Assigned:
        """Return the assignments of rows (n,) in use; row -1 gives list -1 and cosine 0."""
        known = rows >= 0
        lists, cosines = np.full(len(rows), -1, np.int32), np.zeros(len(rows), np.float32)
        lists[known], cosines[known] = self.lists[rows[known]], self.cosines[rows[known]]
        return Assigned(lists, cosines)

    def merged(self) -> "ByRow":
        """Return a copy with base and changes merged."""
        return ByRow(Layers.of(self.lists.merged(-1)), Layers.of(self.cosines.merged(0.0)))

    def replaced(self, rows: Rows, assigned: Assigned, gone: Rows) -> "ByRow":
        """Return a copy with other assignments of `rows` (m,), existing or new, and without the rows `gone`."""
        lists = self.lists.replaced(rows, assigned.lists, gone)
        return ByRow(lists, self.cosines.replaced(rows, assigned.cosines, gone))


@dataclass(frozen=True, eq=False)
class Lists:
    """The trained lists of an IVF index, with the items, vectors and list of each index row."""

    clusters: Clusters
    item_rows: ItemRows
    vectors: Layers[np.float32]
    assigned: ByRow

    def suits(self, empty: Any, kind: str, wanted: str) -> bool:
        """Return whether the lists can be used for an index like the untrained `empty`, with factory string `kind`.

        `wanted` is the setting `index`: unless it is ``auto``, the number of lists must be the same, too.
        """
        fit, mine = self.clusters.fit, self.clusters.empty
        if mine.d != empty.d or family(self.clusters.kind) != family(kind):
            return False
        return wanted == "auto" or fit.trained_lists == empty.nlist

    def known(self, keys: ItemKeys, vectors: Floats, bound: float) -> Assigned:
        """Return the lists of items with these keys (n,) and vectors (n, d); -1 for new and moved items."""
        rows = rows_of(self.item_rows, keys)
        there = np.flatnonzero(rows >= 0)
        rows[there[have_moved(self.vectors, rows[there], vectors, there, bound)]] = -1
        return self.assigned.take(rows)


@dataclass(frozen=True, eq=False)
class PublishedSnapshot:
    """The newest published bundle in memory, with which the next export is compared.

    `free` are the index rows without an item, ascending; `lists` are the lists of an IVF index, or None.
    """

    manifest: BundleManifest
    rows: BundleRows
    free: Rows
    lists: Lists | None

    @classmethod
    def of(cls, servable: Servable) -> Self:
        """Build the snapshot from a bundle; lists are kept only if the manifest records how well they fit."""
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
    """Return the index rows of keys (n,); -1 for keys without a row."""
    return np.asarray(item_rows.look_up(keys), np.int64)


def have_moved(
    old: Layers[np.float32], old_rows: Rows, new: Floats, new_rows: Rows, bound: float
) -> npt.NDArray[np.bool_]:
    """Return which pairs of an old row (n,) and a new row (n,) have vectors that differ by more than `bound`."""
    far = np.empty(len(old_rows), np.bool_)
    for first in range(0, len(old_rows), _BLOCK):
        at = slice(first, first + _BLOCK)
        far[at] = are_apart(old[old_rows[at]], new[new_rows[at]], bound)
    return far


def train_lists(empty: Any, kind: str, rows: BundleRows) -> BackgroundTask[Lists | None]:
    """Train an `empty` IVF index on the `rows` of a bundle, in a thread that is not awaited at exit.

    The result is None if the training failed.
    """
    return beside("weir-index-training", partial(_train, empty, kind, rows))


def _train(empty: Any, kind: str, rows: BundleRows) -> Lists | None:
    """Train the lists; log an error and return None if this fails."""
    try:
        live = rows.live
        keys, vectors = ItemKeys(rows.keys[live]), _on_disk(rows.vectors, live)
        clusters, assigned = Clusters.trained(empty, kind, vectors)
        lists = Lists(clusters, ItemRows.of(keys), Layers.of(vectors), ByRow.of(assigned))
    except Exception:
        logger.exception("the lists of the index could not be trained; the old ones stay")
        return None
    logger.info("%s is trained on %d items; the next export takes it", kind, len(vectors))
    return lists


def _on_disk(vectors: Layers[np.float32], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Return the vectors (n, d) of rows (n,) as a memory-mapped array."""
    spool = Spool(vectors.base.shape[1], np.float32)
    for some in blocks(len(rows)):
        spool.append(vectors[rows[some]])
    return np.asarray(spool.finish())


class OpenBundles:
    """Thread-safe cache of the last three open bundles; opening a later one of a chain reads only the new deltas."""

    def __init__(self) -> None:
        self._lock, self._all = threading.Lock(), list[Servable]()

    def open(self, log: BundleLog, manifest: BundleManifest) -> Servable:
        """Open a bundle by `Servable.open`, with the cached ones as known, and cache the result."""
        return self.add(Servable.open(log, manifest, self._all))

    def read(self, log: BundleLog, manifest: BundleManifest) -> Servable:
        """Return a bundle that was just written, read from its own files."""
        return Servable.open(log, manifest, [one for one in self._all if one.manifest.version != manifest.version])

    def add(self, servable: Servable) -> Servable:
        """Cache a bundle, replacing another one of the same version."""
        with self._lock:
            others = [one for one in self._all if one.manifest.version != servable.manifest.version]
            self._all = [servable, *others][:_MOST]
        return servable


Opened = tuple[Servable, PublishedSnapshot]


def open_newest(log: BundleLog) -> BackgroundTask[Opened | None]:
    """Open the newest bundle in a thread, as a `Servable` and as a `PublishedSnapshot`.

    The result is None if there is no bundle, or it cannot be opened: the next user of the bundle opens it again and
    reports the error.
    """
    # Awaited at exit, as it takes no longer than a start: an error there must not kill the thread halfway.
    return beside("weir-bundle-opening", partial(_open_newest, log), is_awaited=True)


def _open_newest(log: BundleLog) -> Opened | None:
    """Open the newest bundle; None if there is none, or it cannot be opened."""
    try:
        for newest in log.manifests()[-1:]:
            servable = Servable.open(log, newest)
            return servable, PublishedSnapshot.of(servable)
    except Exception:
        logger.debug("the newest bundle cannot be opened", exc_info=True)
    return None
