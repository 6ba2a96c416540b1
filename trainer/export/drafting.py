"""Build export plans: indexes over all items, list assignments, and deltas from a difference."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from weir.contracts import BundleLog, BundleManifest, CorruptArtefactError, IndexInfo
from weir.contracts.index_delta import takes_deltas
from weir.trainer.export.clusters import Assigned, Clusters
from weir.trainer.export.content import Content
from weir.trainer.export.draft import Chain, Complete, Delta, Difference, Placed
from weir.trainer.export.fit import is_unfit, may_repair
from weir.trainer.export.index import empty_index, factory, info_of, least_items
from weir.trainer.export.kept import ByRow, Lists

__all__ = [
    "calls_for_compaction",
    "calls_for_repair",
    "complete",
    "delta_of",
    "empty_for",
    "filled",
    "info_for",
    "known_lists",
    "lists_by_row",
    "placed_in",
    "repaired_in",
    "without_lists",
]

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


def filled(content: Content, placed: Placed, difference: Difference | None) -> Complete:
    """Return the plan of a complete bundle from a whole content, with all items in their lists."""
    # This also sets the search parameters of the clusters' own index, which the filled index copies.
    info = info_for(content, placed)
    index = partial(placed.clusters.filled, content.vectors, placed.assigned.lists)
    return Complete(content, index, info, placed, _share(difference))


def _share(difference: Difference | None) -> float | None:
    return None if difference is None else difference.share


def info_for(content: Content, placed: Placed) -> IndexInfo:
    """Return the description of an index with these lists."""
    clusters = placed.clusters
    return info_of(clusters.empty, clusters.kind, content.state.config.nprobe, clusters.fit)


def delta_of(
    log: BundleLog,
    difference: Difference,
    content: Content,
    info: IndexInfo,
    placed: Placed | None = None,
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


def placed_in(clusters: Clusters, assign: Callable[[npt.NDArray[np.int64]], Assigned], known: Assigned) -> Placed:
    """Assign lists to the items without one, (m,), by `assign`, and record how well they fit."""
    changed = np.flatnonzero(known.lists < 0)
    found = assign(changed)
    known.lists[changed], known.cosines[changed] = found
    unfit = float((found.cosines < clusters.fit.cosine).mean()) if len(changed) else 0.0
    fit = clusters.fit.model_copy(update={"changed": len(changed), "unfit": unfit})
    return Placed(replace(clusters, fit=fit), known)


def calls_for_repair(placed: Placed) -> bool:
    """Return whether the lists fit badly and may be repaired."""
    return is_unfit(placed.clusters.fit) and may_repair(placed.clusters.fit, placed.clusters.lists)


def repaired_in(placed: Placed, vectors: npt.NDArray[np.float32], changed: npt.NDArray[np.bool_]) -> Placed:
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
    return Placed(replace(after, fit=after.fit.model_copy(update={"unfit_left": left})), assigned)
