"""The plan of an export: a complete bundle, or a delta against the newest one, its lists and indexes."""

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


_GROWTH: Final = 2.0
"""Growth of the catalogue since training at which all lists are trained again."""

_UNFIT_SHARE: Final = 0.2
"""Share of badly fitting items (5 % at training) among new and moved ones that triggers a repair.

It counts beyond the share left by the last repair: if all topics drift a little, a repair cannot help, and
the next one would append more lists in vain.
"""

_CHANGED: Final = 100
"""Least number of new and moved items for that share to be significant."""

_RECALL_LOST: Final = 0.05
"""Loss of recall on the newest queries since training that triggers a repair."""

_REPAIRS: Final = 8
"""Number of repairs after which all lists are trained again."""

_APPENDED: Final = 0.5
"""Most lists that repairs may append, as a share of the trained ones: every query is compared with all lists."""

_PAUSE_SECONDS: Final = 600.0
"""Seconds between two trainings triggered by a bad fit: an immediate retraining would not fit better."""


def is_unfit(fit: IndexFit) -> bool:
    """Return whether new and moved items, or the newest queries, show that the lists fit badly."""
    if fit.changed >= _CHANGED and fit.unfit > fit.unfit_left + _UNFIT_SHARE:
        return True
    if fit.recall is None or fit.recall_trained is None:
        return False
    return fit.recall < fit.recall_trained - _RECALL_LOST


def may_repair(fit: IndexFit, lists: int) -> bool:
    """Return whether another repair is allowed with this number of lists."""
    return lists < (1 + _APPENDED) * fit.trained_lists


def is_outgrown(fit: IndexFit, items: int, now: float, every_seconds: float | None) -> bool:
    """Return whether all lists should be trained: for growth, for age, or because repairs no longer help.

    Parameters
    ----------
    fit
        Fit of the newest export.
    items
        Items in the catalogue.
    now
        Wall clock, seconds since 1970.
    every_seconds
        Age at which lists are trained again in any case; None: at no age.
    """
    age = now - fit.trained_at
    if items >= _GROWTH * fit.trained_items or (every_seconds is not None and age >= every_seconds):
        return True
    return age >= _PAUSE_SECONDS and (fit.repairs >= _REPAIRS or is_unfit(fit))


Rows = npt.NDArray[np.int64]


class AssignedLists(NamedTuple):
    """The lists of an IVF index, and the list of each of a content's items, (n,)."""

    clusters: Clusters
    assigned: Assigned


@dataclass(frozen=True, eq=False)
class Complete:
    """Plan of a complete bundle: an index over all items of a whole content, in order; `placed` if lists are kept.

    `index` builds it when it is written, so that it is freed afterwards. `moved` is `Difference.share`.
    """

    content: Content
    index: Callable[[], Any]
    info: IndexInfo
    placed: AssignedLists | None = None
    moved: float | None = None


class Chain(NamedTuple):
    """The stored chain of the bundle `ref`: its complete base, the number of deltas, and the rows in them."""

    ref: BundleRef
    base: str
    deltas: int
    rows: int


@dataclass(frozen=True, eq=False)
class Delta:
    """Plan of a delta: the `items` (m,) of a content to publish, the index rows `places` (n,) of all, rows to remove.

    `parent` is the bundle it changes, stored as `chain`. `placed` is set if the index has lists; `appended` (c, d) are
    centroids added by a repair.
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
        """Return the rows without an item after the delta, ascending."""
        free = ascending(np.concatenate([self.parent.free, self.removed]))
        # Usually there are none, but many places.
        return np.setdiff1d(free, self.places[self.items]) if len(free) else free


@dataclass(frozen=True, eq=False)
class Difference:
    """Difference between a state and the kept bundle, from a content of all items, or of those touched since.

    `rows` (n,) are the published rows of the content's items, -1 for new ones; `moved` (n,) marks items that differ by
    more than the bound; `removed` are rows of removed items, ascending; `items` is the number of items of the state.
    """

    kept: PublishedSnapshot
    rows: Rows
    moved: npt.NDArray[np.bool_]
    removed: Rows
    items: int

    @classmethod
    def of(cls, kept: PublishedSnapshot, content: Content, bound: float) -> Self:
        """Compare every item of a content with the kept bundle."""
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
        """Return the items to publish, including `also` (n,), the rows of all n items, and the rows to remove.

        New items take rows of removed items first, then empty rows, then new rows.
        """
        items = np.flatnonzero((self.rows < 0) | self.moved | also)
        rows = self.rows.copy()
        new = np.flatnonzero(rows < 0)
        further = np.arange(len(self.kept.rows), len(self.kept.rows) + len(new))
        rows[new] = np.concatenate([self.removed, self.kept.free, further])[: len(new)]
        return items, rows, self.removed[len(new) :]


def _missing(kept: PublishedSnapshot, there: Rows) -> Rows:
    """Return the rows in use except `there` (n,)."""
    is_gone = np.zeros(len(kept.rows), np.bool_)
    is_gone[kept.rows.live] = True
    is_gone[there] = False
    return np.flatnonzero(is_gone)


def _gone(kept: PublishedSnapshot, content: Content, left: ItemKeys) -> Rows:
    """Return the index rows of evicted items that were not admitted again."""
    gone = ItemKeys(left[content.state.table.rows(left) == SHARED])
    rows = rows_of(kept.rows.item_rows, gone)
    return np.sort(rows[rows >= 0])  # `left` has each key once


logger = logging.getLogger(__name__)

_FLAT: Final = "Flat"

_MOST_OF_DELTA: Final = 0.25
"""Most rows of one delta, as a share of the complete bundle's rows: a larger delta is not cheaper to load."""

_MOST_OF_CHAIN: Final = 1.0
"""Most rows of all deltas of a chain, as such a share: a starting server reads at most two complete bundles' rows."""

_COMPACTED: Final = 0.75
"""Share of the limits at which a chain is compacted, so that it finishes before they are reached."""


def empty_for(content: Content) -> tuple[Any, str]:
    """Return an untrained index for all items of a state, and its factory string; flat if there are too few items."""
    config = content.state.config
    kind = factory(content.total, config.index)
    empty = empty_index(config.tower.dimension, kind)
    if content.total >= least_items(empty):
        return empty, kind
    return empty_index(config.tower.dimension, _FLAT), _FLAT


def without_lists(
    log: BundleLog, difference: Difference, content: Content, empty: Any, kind: str, *, room: int
) -> Delta | None:
    """Return the delta for an index without lists; None if a complete bundle is due."""
    if not takes_deltas(empty) or difference.kept.manifest.index.type != kind:
        return None
    return delta_of(log, difference, content, info_of(empty, kind, content.state.config.nprobe), room=room)


def complete(empty: Any, kind: str, content: Content, difference: Difference | None) -> Complete:
    """Return the plan of a complete bundle from a whole content, for an index whose lists are not kept."""
    if kind != (wanted := factory(content.total, content.state.config.index)):
        logger.warning("%s takes more items than the %d there are: until then it is %s", wanted, content.total, kind)
    empty.train(content.vectors)
    empty.add(content.vectors)
    info = info_of(empty, kind, content.state.config.nprobe)
    return Complete(content, lambda: empty, info, moved=_share(difference))


def filled(content: Content, placed: AssignedLists, difference: Difference | None) -> Complete:
    """Return the plan of a complete bundle from a whole content, with all items in their lists."""
    # This also sets the search parameters of the clusters' own index, which the filled index copies.
    info = info_for(content, placed)
    index = partial(placed.clusters.filled, content.vectors, placed.assigned.lists)
    return Complete(content, index, info, placed, _share(difference))


def _share(difference: Difference | None) -> float | None:
    return None if difference is None else difference.share


def info_for(content: Content, placed: AssignedLists) -> IndexInfo:
    """Return the description of an index with these lists."""
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
    """Return the stored chain of the kept bundle; None if it is incomplete or replaced."""
    try:
        manifest, ref = log.manifest_and_ref(kept.version)
        chain = log.chain(manifest)
    except (CorruptArtefactError, FileNotFoundError) as error:
        logger.error("the next bundle is complete, the newest one cannot be built on: %s", error)
        return None
    if manifest != kept:
        return None
    return Chain(ref, chain[0].version, len(chain) - 1, sum(one.changed for one in chain[1:]))


def lists_by_row(draft: Complete | Delta, assigned: Assigned) -> ByRow:
    """Return the lists by index row after a draft, from the lists of its content's items."""
    if isinstance(draft, Complete) or draft.parent.lists is None:
        return ByRow.of(assigned)
    return draft.parent.lists.assigned.replaced(draft.places[draft.items], assigned.take(draft.items), draft.removed)


def known_lists(lists: Lists, difference: Difference) -> Assigned:
    """Return the lists of a content's items that have not moved; -1 for the others."""
    return lists.assigned.take(np.where(difference.moved, -1, difference.rows))


def placed_in(
    clusters: Clusters, assign: Callable[[npt.NDArray[np.int64]], Assigned], known: Assigned
) -> AssignedLists:
    """Assign lists to the items without one, (m,), by `assign`, and record how well they fit."""
    changed = np.flatnonzero(known.lists < 0)
    found = assign(changed)
    known.lists[changed], known.cosines[changed] = found
    unfit = float((found.cosines < clusters.fit.cosine).mean()) if len(changed) else 0.0
    fit = clusters.fit.model_copy(update={"changed": len(changed), "unfit": unfit})
    return AssignedLists(replace(clusters, fit=fit), known)


def calls_for_repair(placed: AssignedLists) -> bool:
    """Return whether the lists fit badly and may be repaired."""
    return is_unfit(placed.clusters.fit) and may_repair(placed.clusters.fit, placed.clusters.lists)


def repaired_in(
    placed: AssignedLists, vectors: npt.NDArray[np.float32], changed: npt.NDArray[np.bool_]
) -> AssignedLists:
    """Repair the lists of all items if they fit badly, and record how badly the `changed` items (n,) still fit."""
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
