"""The planner of exports: an export writes only the items that are new or have moved since the newest bundle.

If steps move all items, each rank compares its items with the published ones (`weir.trainer.state.published`).

Training the lists of an IVF index takes minutes for millions of items. The first export waits for the training. Later,
items that fit no list trigger a local repair within the export; growth, age or failing repairs trigger a training in
the background, and a later export uses its lists. A follower also compacts long chains of deltas in the background, so
that few exports are complete, and exports all items of a large table in the background, from a snapshot.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import faiss
import numpy as np
import numpy.typing as npt

from weir.contracts import BundleLog, BundleManifest, CorruptArtefactError, IndexFit, ItemKeys
from weir.contracts.bundles.faiss_index import takes_deltas
from weir.contracts.bundles.manifest import BundleRef
from weir.contracts.bundles.rows import FIRST_ITEM_ROW, BundleRows
from weir.contracts.bundles.variants import MAIN, version_of
from weir.runtime.background import BackgroundTask
from weir.trainer.export.compaction import Compacted, start_compaction
from weir.trainer.export.content import Content, Line, name_of, place_of
from weir.trainer.export.index import Clusters
from weir.trainer.export.plan import (
    AssignedLists,
    Complete,
    Delta,
    Difference,
    calls_for_compaction,
    calls_for_repair,
    complete,
    delta_of,
    empty_for,
    filled,
    info_for,
    is_outgrown,
    known_lists,
    lists_by_row,
    placed_in,
    repaired_in,
    without_lists,
)
from weir.trainer.export.servable import Servable
from weir.trainer.export.snapshot import Lists, OpenBundles, Opened, PublishedSnapshot, open_newest, train_lists
from weir.trainer.items.rows import FIRST_ITEM, TableRows
from weir.trainer.state.trainer_state import TrainerState

__all__ = ["ExportPlanner", "is_known", "note_published", "publish_all", "recognise"]

logger = logging.getLogger(__name__)


_AT_ONCE: Final = 1 << 16
"""Vectors sent to their ranks at a time: 16 MB with 64 dimensions."""

Rows = npt.NDArray[np.int64]


_MEASURED: Final = 1 / 32
"""Share of rows published since the last measurement of the index's recall at which it is measured again."""

_LARGE: Final = 1 << 16
"""Number of items from which a full export is made in the background; a smaller one takes half a second."""


def recognise(log: BundleLog, state: TrainerState) -> None:
    """Record in a loaded state, before it changes, whether the newest bundle was exported from it.

    A stopped run exports after its last checkpoint, so the checkpoint does not record the bundle. Collective, or called
    by rank 0 in `Workers.first`.
    """
    for newest in log.manifests()[-1:] if len(state.table) else ():
        with suppress(CorruptArtefactError, FileNotFoundError):
            is_known(state, *log.manifest_and_ref(newest.version))


def is_known(state: TrainerState, newest: BundleManifest, ref: BundleRef) -> bool:
    """Return whether the state knows its changes since the newest bundle.

    A state with the bundle's name has no changes, which is then recorded in it.
    """
    if state.since.begins_at(ref):
        return True
    if newest.recipe is None or not newest.version.startswith(place_of(state)):
        # The usual case, without the cost of a digest over all rows.
        return False
    if newest.version == version_of(name_of(state, at_all=True), newest.variant):
        state.since.note(ref, float(newest.recipe.settings["publish_bound"]))
    return state.since.begins_at(ref)


def note_published(draft: Complete | Delta, rows: BundleRows, ref: BundleRef) -> None:
    """Record in the state that it, or its snapshot, was published as the bundle `ref` with these `rows`."""
    state = draft.content.state
    state.since.ref = None  # until everything is recorded
    if state.featured is not None and state.config.publish_bound:
        if isinstance(draft, Complete) or draft.content.is_whole:
            publish_all(state, rows)
        else:
            for some in _pieces(draft.items):
                vectors = rows.embeddings[draft.places[some] + FIRST_ITEM_ROW]
                state.since.items.take(TableRows(draft.content.rows[some]), vectors)
    if draft.content.described is None:
        state.since.note(ref)
    else:
        state.since.note_snapshot(ref)


def publish_all(state: TrainerState, rows: BundleRows) -> None:
    """Send the vectors of a bundle's rows to the ranks that own the items' table rows."""
    for some in _pieces(rows.live):
        table_rows = state.table.rows(ItemKeys(rows.keys[some]))
        has_row = table_rows >= FIRST_ITEM
        state.since.items.take(TableRows(table_rows[has_row]), rows.embeddings[some[has_row] + FIRST_ITEM_ROW])


def _pieces(rows: Rows) -> Iterator[Rows]:
    """Split rows (n,) into pieces of `_AT_ONCE`."""
    return (rows[first : first + _AT_ONCE] for first in range(0, len(rows), _AT_ONCE))


@dataclass
class ExportPlanner:
    """Plans each export from the newest bundle, which it keeps in memory.

    Not thread-safe: while the background export `making` uses the planner, no other export does.

    Attributes
    ----------
    clock
        Wall clock, seconds since 1970.
    beside
        True: long chains are compacted, and exports of all items made, in the background. False: a complete bundle ends
        a long chain.
    variant
        The exported variant.
    large
        Number of items from which an export of all items is made in the background.
    is_last
        Whether the next export is the last: no background work is then started for a later export.
    compared
        Share of all items that the newest export examined.
    making
        The running export in the background, if any; its result is the function that finishes the export.
    """

    clock: Callable[[], float] = time.time
    beside: bool = False
    variant: str = MAIN
    large: int = _LARGE
    is_last: bool = False
    compared: float = 1.0
    making: BackgroundTask[Callable[[], BundleManifest]] | None = None
    _kept: PublishedSnapshot | None = None
    _opening: BackgroundTask[Opened | None] | None = None
    _training: BackgroundTask[Lists | None] | None = None
    _compaction: BackgroundTask[Compacted | None] | None = None
    _opened: OpenBundles = field(default_factory=OpenBundles)

    def start(self, log: BundleLog) -> None:
        """Start to open the newest bundle of a store in the background."""
        self._opening = open_newest(log)

    def _take_opened(self) -> None:
        """Wait for the bundle that `start` opens, and keep it."""
        opening, self._opening = self._opening, None
        if opening is not None and (opened := opening.result()) is not None:
            servable, self._kept = opened
            self._opened.add(servable)

    def open(self, log: BundleLog, manifest: BundleManifest) -> Servable:
        """Return a bundle that answers queries; raises as `Servable.open`. The newest bundles stay in memory."""
        self._take_opened()
        return self._opened.open(log, manifest)

    def read(self, log: BundleLog, manifest: BundleManifest) -> Servable:
        """Return a bundle that was just written, read from its own files."""
        return self._opened.read(log, manifest)

    def resume(self, log: BundleLog) -> None:
        """Load the newest bundle of a store as the base of the next one, unless a bundle is loaded or it is damaged."""
        self._take_opened()
        if self._kept is not None or not (manifests := log.manifests()):
            return
        try:
            self._kept = PublishedSnapshot.of(self.open(log, manifests[-1]))
        except (CorruptArtefactError, FileNotFoundError) as error:
            logger.warning("the next bundle is complete, with an index from nothing: %s", error)

    def forget_other(self, manifest: BundleManifest) -> None:
        """Drop the loaded bundle unless it has this manifest; the next export reads the newest one from the store."""
        if self._kept is not None and self._kept.manifest != manifest:
            self._kept = None

    def content(self, log: BundleLog, state: TrainerState) -> Content:
        """Return the content that an export compares with the loaded bundle.

        If the state knows its changes since the loaded bundle, the content has the changed rows only; otherwise, all
        items. If steps move items without touching their rows, the ranks search for moved items.
        """
        self.resume(log)
        self._take_compacted(log)
        ref, line = self._ref(log), Line(log.store, self.variant)
        if self._kept is None or ref is None or not is_known(state, self._kept.manifest, ref):
            return Content.of(state, line)
        if state.featured is None:
            return Content.since(state, line)
        if not state.config.publish_bound:
            # Without a bound, every item has moved.
            return Content.of(state, line)
        if not state.since.items.is_known:
            publish_all(state, self._kept.rows)
        return Content.since(state, line)

    def _ref(self, log: BundleLog) -> BundleRef | None:
        """Return the reference of the loaded bundle; None if the store has no or another bundle of this version."""
        if self._kept is None:
            return None
        try:
            manifest, ref = log.manifest_and_ref(self._kept.manifest.version)
        except (CorruptArtefactError, FileNotFoundError):
            return None
        return ref if manifest == self._kept.manifest else None

    def draft_touched(self, log: BundleLog, content: Content) -> Delta | None:
        """Return the delta of a content of touched rows; None if the export needs all items."""
        if content.is_whole:
            return None
        difference, empty, kind = self._difference(content), *empty_for(content)
        if difference is None:
            return None
        if not isinstance(empty, faiss.IndexIVF) or not takes_deltas(empty):
            return without_lists(log, difference, content, empty, kind, room=self._room)
        lists = difference.kept.lists
        if lists is None or not lists.suits(empty, kind, content.state.config.index) or self._has_trained:
            return None
        placed = placed_in(lists.clusters, partial(content.assigned, lists.clusters), known_lists(lists, difference))
        if calls_for_repair(placed):
            return None
        return delta_of(log, difference, content, info_for(content, placed), placed, room=self._room)

    def draft_whole(self, log: BundleLog, content: Content) -> Complete | Delta:
        """Return the export plan for a whole content.

        Raises
        ------
        RuntimeError
            From FAISS, for an unknown factory string.
        """
        difference, empty, kind = self._difference(content), *empty_for(content)
        if not isinstance(empty, faiss.IndexIVF) or not takes_deltas(empty):
            delta = without_lists(log, difference, content, empty, kind, room=self._room) if difference else None
            return delta or complete(empty, kind, content, difference)
        trained = self._trained()
        lists = trained or (difference.kept.lists if difference else None)
        if lists is None or not lists.suits(empty, kind, content.state.config.index):
            return filled(content, AssignedLists(*Clusters.trained(empty, kind, content.vectors)), difference)
        if trained is not None or difference is None:
            known = lists.known(content.keys, content.vectors, content.state.config.publish_bound)
        else:
            known = known_lists(lists, difference)
        changed = known.lists < 0
        placed = repaired_in(
            placed_in(lists.clusters, partial(content.assigned, lists.clusters), known), content.vectors, changed
        )
        delta = None
        if trained is None and difference is not None:
            delta = delta_of(log, difference, content, info_for(content, placed), placed, room=self._room)
        return delta or filled(content, placed, difference)

    def is_recall_due(self, draft: Complete | Delta) -> bool:
        """Return whether to compare the index with exact search, which costs O(items).

        After a delta of touched rows, the comparison is due only if 1/32 of all rows were published since the last one,
        so that it costs little in comparison.
        """
        fit = draft.info.fit
        if isinstance(draft, Complete) or draft.content.is_whole or fit is None or fit.recall is None:
            return True
        return fit.unmeasured + len(draft.items) >= _MEASURED * draft.content.total

    def note(self, log: BundleLog, draft: Complete | Delta, ref: BundleRef, servable: Servable | None) -> None:
        """Keep the written bundle `ref` as the base of the next one, and start background work that is due.

        Without a `servable`, the next export reads the bundle from the store.
        """
        self.compared = len(draft.content.rows) / draft.content.total
        if servable is None:
            self._kept = None
            return
        rows, lists, fit = servable.rows, None, servable.manifest.index.fit
        if draft.placed is not None and fit is not None:
            clusters = replace(draft.placed.clusters, fit=fit)
            lists = Lists(clusters, rows.item_rows, rows.vectors, lists_by_row(draft, draft.placed.assigned))
        free = draft.free() if isinstance(draft, Delta) else np.empty(0, np.int64)
        self._kept = PublishedSnapshot(servable.manifest, rows, free, lists)
        self._opened.add(servable)
        note_published(draft, rows, ref)
        if self.is_last:
            return
        is_long = isinstance(draft, Delta) and calls_for_compaction(draft)
        if self.beside and is_long and self._compaction is None:
            self._compaction = start_compaction(log, self._kept, servable)
        if lists is not None:
            self._train_outgrown(lists.clusters.fit, draft.content, rows)

    def makes_beside(self, content: Content) -> bool:
        """Return whether an export of all items is made in the background."""
        return self.beside and content.total >= self.large

    @property
    def _room(self) -> int:
        """Factor on the limits of a chain: 2 during a compaction, so that no export waits for its end."""
        return 1 if self._compaction is None else 2

    def _take_compacted(self, log: BundleLog) -> None:
        """Switch to the compacted chain, if it is ready."""
        if self._compaction is None or self._compaction.running or self._kept is None:
            return
        result, self._compaction = self._compaction.result(), None
        try:
            rebased = result.under(log, self._kept) if result else None
        except (CorruptArtefactError, FileNotFoundError) as error:
            logger.warning("the chain goes on as it is: %s", error)
            return
        if rebased is not None:
            self._kept, servable = rebased
            self._opened.add(servable)

    def _difference(self, content: Content) -> Difference | None:
        """Compare a content with the loaded bundle; None if dimension, history length or metric differ."""
        tower, kept = content.state.config.tower, self._kept
        metric = "cosine" if tower.normalised else "inner_product"
        shape = (tower.dimension, tower.history_length, metric)
        if kept is None or (kept.manifest.dimension, kept.manifest.history_length, kept.manifest.metric) != shape:
            return None
        return Difference.of(kept, content, content.state.config.publish_bound)

    def _train_outgrown(self, fit: IndexFit, content: Content, rows: BundleRows) -> None:
        """Start to train all lists in the background, on the rows of a bundle, if the training is due."""
        every = content.state.config.index_training_every_seconds
        if self._training is None and is_outgrown(fit, content.total, self.clock(), every):
            self._training = train_lists(*empty_for(content), rows)

    @property
    def _has_trained(self) -> bool:
        """Whether a training in the background has ended and its lists were not used yet."""
        return self._training is not None and not self._training.running

    def _trained(self) -> Lists | None:
        """Return the lists trained in the background, once; None if there are none."""
        if self._training is None or not self._has_trained:
            return None
        result, self._training = self._training.result(), None
        return result
