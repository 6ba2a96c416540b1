"""The plan of an export: a complete bundle, or a delta against the newest bundle; its lists and its index."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from weir.contracts import BundleLog, BundleManifest, CorruptArtefactError, IndexFit, IndexInfo, ItemKeys
from weir.contracts.base.arrays import ascending
from weir.contracts.bundles.faiss_index import takes_deltas
from weir.contracts.bundles.manifest import BundleRef
from weir.trainer.export.content import Content
from weir.trainer.export.index import Assigned, Clusters, empty_index, factory, info_of, least_items
from weir.trainer.export.snapshot import ByRow, Lists, PublishedSnapshot, rows_of
from weir.trainer.items.rows import SHARED

__all__ = [
    "AssignedLists",
    "Chain",
    "Complete",
    "Delta",
    "Difference",
    "calls_for_compaction",
    "calls_for_repair",
    "complete",
    "delta_of",
    "empty_for",
    "filled",
    "info_for",
    "is_outgrown",
    "is_unfit",
    "known_lists",
    "lists_by_row",
    "may_repair",
    "placed_in",
    "repaired_in",
    "without_lists",
]

logger = logging.getLogger(__name__)


_GROWTH: Final = 2.0
"""Growth of the catalogue since training at which all lists are trained again."""

_UNFIT_SHARE: Final = 0.2
"""Share of badly fitting items (5 % at training) among new and moved items that triggers a repair.

Measured beyond the share that the last repair left: if all topics drift a little, repairs do not help, and the next
repair would append more lists in vain.
"""

_CHANGED: Final = 100
"""Least number of new and moved items for the share of badly fitting items to be significant."""

_RECALL_LOST: Final = 0.05
"""Loss of recall on the newest queries since training that triggers a repair."""

_REPAIRS: Final = 8
"""Number of repairs after which all lists are trained again."""

_APPENDED: Final = 0.5
"""Most lists that repairs may append, as a share of the trained ones: every query is compared with all lists."""

_PAUSE_SECONDS: Final = 600.0
"""Seconds between two trainings triggered by a bad fit: an immediate retraining would not fit better."""


Rows = npt.NDArray[np.int64]

_FLAT: Final = "Flat"

_MOST_OF_DELTA: Final = 0.25
"""Most rows of one delta, as a share of the complete bundle's rows: a larger delta is not cheaper to load."""

_MOST_OF_CHAIN: Final = 1.0
"""Most rows of all deltas of a chain, as a share of the complete bundle's rows.

A starting server then reads at most as many rows as two complete bundles have.
"""

_COMPACTED: Final = 0.75
"""Share of a chain's limits at which compaction starts, so that it ends before the limits are reached."""


def is_unfit(fit: IndexFit) -> bool:
    """Return whether the lists fit badly: too many new and moved items fit no list, or recall has dropped."""
    if fit.changed >= _CHANGED and fit.unfit > fit.unfit_left + _UNFIT_SHARE:
        return True
    if fit.recall is None or fit.recall_trained is None:
        return False
    return fit.recall < fit.recall_trained - _RECALL_LOST


def may_repair(fit: IndexFit, lists: int) -> bool:
    """Return whether an index with this number of `lists` may be repaired again: repairs append lists."""
    return lists < (1 + _APPENDED) * fit.trained_lists


def is_outgrown(fit: IndexFit, items: int, now: float, every_seconds: float | None) -> bool:
    """Return whether all lists should be trained again: for growth, for age, or because repairs do not help.

    Parameters
    ----------
    fit
        Fit of the newest export.
    items
        Items in the catalogue.
    now
        Wall clock, seconds since 1970.
    every_seconds
        Age in seconds at which lists are trained again in any case; None: never for age alone.
    """
    age = now - fit.trained_at
    if items >= _GROWTH * fit.trained_items or (every_seconds is not None and age >= every_seconds):
        return True
    return age >= _PAUSE_SECONDS and (fit.repairs >= _REPAIRS or is_unfit(fit))


class AssignedLists(NamedTuple):
    """Clusters: the lists of an IVF index; assigned: the list of each item of a content, (n,)."""

    clusters: Clusters
    assigned: Assigned


@dataclass(frozen=True, eq=False)
class Complete:
    """Plan of a complete bundle: an index over all items of a whole `content`, in order.

    `index` builds the index when the files are written, so that its memory is freed afterwards. `placed` are the lists
    of an IVF index, else None. `moved` is the share of items that are new or have moved (`Difference.share`).
    """

    content: Content
    index: Callable[[], Any]
    info: IndexInfo
    placed: AssignedLists | None = None
    moved: float | None = None


class Chain(NamedTuple):
    """A stored chain, from the version `base` (complete) to the bundle `ref`: numbers of deltas and of their rows."""

    ref: BundleRef
    base: str
    deltas: int
    rows: int


@dataclass(frozen=True, eq=False)
class Delta:
    """Plan of a delta: the items and index rows by which it changes its parent bundle.

    Attributes
    ----------
    content
        Content with n items.
    parent, chain
        The bundle that the delta changes, in memory and as stored.
    info
        Description of the index.
    items
        Indices of the items to publish, (m,).
    places
        Index rows of all items, (n,).
    removed
        Index rows to remove, (r,).
    placed
        Lists of an IVF index; None for other kinds.
    appended
        Centroids (c, d) of lists that a repair appended.
    moved
        Share of items that are new or have moved (`Difference.share`).
    """

    content: Content
    parent: PublishedSnapshot
    chain: Chain
    info: IndexInfo
    items: Rows
    places: Rows
    removed: Rows
    placed: AssignedLists | None = None
    appended: npt.NDArray[np.float32] | None = None
    moved: float | None = None

    def free(self) -> Rows:
        """Return the index rows without an item after the delta, ascending."""
        free = ascending(np.concatenate([self.parent.free, self.removed]))
        # Usually there are none, but many places.
        return np.setdiff1d(free, self.places[self.items]) if len(free) else free


@dataclass(frozen=True, eq=False)
class Difference:
    """Difference between the content of a state and the newest published bundle, `kept`.

    `rows` (n,) are the published index rows of the content's items, -1 for new items; `moved` (n,) marks items whose
    vectors differ by more than the bound; `removed` are the index rows of removed items, ascending; `items` is the
    number of items of the state.
    """

    kept: PublishedSnapshot
    rows: Rows
    moved: npt.NDArray[np.bool_]
    removed: Rows
    items: int

    @classmethod
    def of(cls, kept: PublishedSnapshot, content: Content, bound: float) -> Self:
        """Compare every item of a content with the published bundle; `bound` is the setting `publish_bound`."""
        rows = rows_of(kept.rows.item_rows, content.keys)
        there = np.flatnonzero(rows >= 0)
        moved = np.zeros(len(rows), np.bool_)
        moved[there] = kept.moved(rows[there], content, there, bound)
        removed = _missing(kept, rows[there]) if content.left is None else _gone(kept, content, content.left)
        return cls(kept, rows, moved, removed, content.total)

    @property
    def share(self) -> float:
        """Share of all items that are new or have moved."""
        return np.count_nonzero((self.rows < 0) | self.moved) / self.items

    def rows_for(self, also: npt.NDArray[np.bool_]) -> tuple[Rows, Rows, Rows]:
        """Return which items to publish, (m,), the index rows of all items, (n,), and the index rows to remove.

        New and moved items are published, and the items marked in `also` (n,). New items get rows of removed items
        first, then empty rows, then new rows.
        """
        items = np.flatnonzero((self.rows < 0) | self.moved | also)
        rows = self.rows.copy()
        new = np.flatnonzero(rows < 0)
        further = np.arange(len(self.kept.rows), len(self.kept.rows) + len(new))
        rows[new] = np.concatenate([self.removed, self.kept.free, further])[: len(new)]
        return items, rows, self.removed[len(new) :]


def _missing(kept: PublishedSnapshot, there: Rows) -> Rows:
    """Return the index rows in use except the rows `there` (n,), ascending."""
    is_gone = np.zeros(len(kept.rows), np.bool_)
    is_gone[kept.rows.live] = True
    is_gone[there] = False
    return np.flatnonzero(is_gone)


def _gone(kept: PublishedSnapshot, content: Content, left: ItemKeys) -> Rows:
    """Return the index rows, ascending, of evicted items (keys `left`) that were not admitted again."""
    gone = ItemKeys(left[content.state.table.rows(left) == SHARED])
    rows = rows_of(kept.rows.item_rows, gone)
    return np.sort(rows[rows >= 0])  # `left` has each key once


def empty_for(content: Content) -> tuple[Any, str]:
    """Return an untrained index for the items of a state, and its factory string; flat with too few items to train."""
    config = content.state.config
    kind = factory(content.total, config.index)
    empty = empty_index(config.tower.dimension, kind)
    if content.total >= least_items(empty):
        return empty, kind
    return empty_index(config.tower.dimension, _FLAT), _FLAT


def without_lists(
    log: BundleLog, difference: Difference, content: Content, empty: Any, kind: str, *, room: int
) -> Delta | None:
    """Return the delta for an index without lists (`empty`: untrained); None if a complete bundle is due.

    The limits of a chain are multiplied by `room`.
    """
    if not takes_deltas(empty) or difference.kept.manifest.index.type != kind:
        return None
    return delta_of(log, difference, content, info_of(empty, kind, content.state.config.nprobe), room=room)


def complete(empty: Any, kind: str, content: Content, difference: Difference | None) -> Complete:
    """Train and fill an index whose lists are not kept, and return the plan of a complete bundle of a whole content."""
    if kind != (chosen := factory(content.total, content.state.config.index)):
        logger.warning("%s takes more items than the %d there are: until then it is %s", chosen, content.total, kind)
    empty.train(content.vectors)
    empty.add(content.vectors)
    info = info_of(empty, kind, content.state.config.nprobe)
    return Complete(content, lambda: empty, info, moved=_share(difference))


def filled(content: Content, placed: AssignedLists, difference: Difference | None) -> Complete:
    """Return the plan of a complete bundle from a whole content, with all items in the lists of an IVF index."""
    # This also sets the search parameters of the clusters' own index, which the filled index copies.
    info = info_for(content, placed)
    index = partial(placed.clusters.filled, content.vectors, placed.assigned.lists)
    return Complete(content, index, info, placed, _share(difference))


def _share(difference: Difference | None) -> float | None:
    return None if difference is None else difference.share


def info_for(content: Content, placed: AssignedLists) -> IndexInfo:
    """Return the description of an IVF index with these lists, for the manifest."""
    clusters = placed.clusters
    return info_of(clusters.empty, clusters.kind, content.state.config.nprobe, clusters.fit)


def delta_of(
    log: BundleLog,
    difference: Difference,
    content: Content,
    info: IndexInfo,
    placed: AssignedLists | None = None,
    *,
    room: int,
) -> Delta | None:
    """Return the delta that publishes a difference; None if a complete bundle is due.

    A complete bundle is due if the published chain is damaged, or the delta or the chain with the delta is too long.
    The limits of a chain are multiplied by `room`.
    """
    kept, moves, appended = difference.kept, np.zeros(len(difference.rows), np.bool_), None
    if kept.lists is not None and placed is not None:
        moves = kept.lists.assigned.take(difference.rows).lists != placed.assigned.lists
        appended = placed.clusters.centroids()[kept.lists.clusters.lists :]
    items, places, removed = difference.rows_for(moves)
    chain, most = _stored(log, kept.manifest), len(kept.rows.vectors.base)
    if chain is None or chain.deltas >= room * content.state.config.bundle_chain:
        return None
    if len(items) > _MOST_OF_DELTA * most or chain.rows + len(items) > room * _MOST_OF_CHAIN * most:
        return None
    return Delta(content, kept, chain, info, items, places, removed, placed, appended, difference.share)


def calls_for_compaction(delta: Delta) -> bool:
    """Return whether the chain with this delta is long enough to be compacted."""
    chain, most = delta.chain, len(delta.parent.rows.vectors.base)
    described = chain.rows + len(delta.items)
    longest = delta.content.state.config.bundle_chain
    return chain.deltas + 1 >= _COMPACTED * longest or described >= _COMPACTED * _MOST_OF_CHAIN * most


def _stored(log: BundleLog, kept: BundleManifest) -> Chain | None:
    """Return the stored chain of the published bundle; None if it is incomplete or replaced."""
    try:
        manifest, ref = log.manifest_and_ref(kept.version)
        chain = log.chain(manifest)
    except (CorruptArtefactError, FileNotFoundError) as error:
        logger.error("the next bundle is complete, the newest one cannot be built on: %s", error)
        return None
    if manifest != kept:
        return None
    return Chain(ref, chain[0].version, len(chain) - 1, sum(delta.changed for delta in chain[1:]))


def lists_by_row(draft: Complete | Delta, assigned: Assigned) -> ByRow:
    """Return the list of each index row after an export, given the lists of the items of its content."""
    if isinstance(draft, Complete) or draft.parent.lists is None:
        return ByRow.of(assigned)
    return draft.parent.lists.assigned.replaced(draft.places[draft.items], assigned.take(draft.items), draft.removed)


def known_lists(lists: Lists, difference: Difference) -> Assigned:
    """Return the published lists of a content's items, -1 for new and moved items."""
    return lists.assigned.take(np.where(difference.moved, -1, difference.rows))


def placed_in(
    clusters: Clusters, assign: Callable[[npt.NDArray[np.int64]], Assigned], known: Assigned
) -> AssignedLists:
    """Assign the items without a list (-1 in `known`) by `assign`, and record how well the lists fit these items."""
    changed = np.flatnonzero(known.lists < 0)
    assigned = assign(changed)
    known.lists[changed], known.cosines[changed] = assigned
    unfit = float((assigned.cosines < clusters.fit.cosine).mean()) if len(changed) else 0.0
    fit = clusters.fit.model_copy(update={"changed": len(changed), "unfit": unfit})
    return AssignedLists(replace(clusters, fit=fit), known)


def calls_for_repair(placed: AssignedLists) -> bool:
    """Return whether the lists fit badly and may be repaired."""
    return is_unfit(placed.clusters.fit) and may_repair(placed.clusters.fit, placed.clusters.lists)


def repaired_in(
    placed: AssignedLists, vectors: npt.NDArray[np.float32], changed: npt.NDArray[np.bool_]
) -> AssignedLists:
    """Repair the lists if they fit badly, and record which share of the `changed` items (n,) still fits badly.

    `vectors` (n, d) are the vectors of all items.
    """
    clusters, known = placed
    repaired = clusters.repaired(vectors, known) if calls_for_repair(placed) else None
    if repaired is None:
        return placed
    after, assigned = repaired
    left = float((assigned.cosines[changed] < after.fit.cosine).mean()) if changed.any() else 0.0
    logger.info(
        "of %d new and moved items %.0f %% fitted no list: with %d lists it is %.0f %%",
        *(clusters.fit.changed, 100 * clusters.fit.unfit, after.lists, 100 * left),
    )
    return AssignedLists(replace(after, fit=after.fit.model_copy(update={"unfit_left": left})), assigned)
