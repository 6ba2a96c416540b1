"""Keeps what is published between exports, so that an export assigns and writes only what is new or has moved.

Training lists takes minutes for millions of items. Where there are none at all, an export waits for it. Otherwise items
that the lists no longer fit cause a local repair within the export, and growth, age or repairs that do not help cause a
training beside the stream, which a later export takes over. Beside the stream of a follower, long chains of deltas are
compacted, too, so that few exports are complete, and exports of a large table for which touched rows do not suffice are
made there, of a snapshot.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import faiss
import numpy as np

from weir.contracts import BundleLog, BundleManifest, CorruptArtefactError, IndexFit
from weir.contracts.bundle_manifest import BundleRef
from weir.contracts.bundle_rows import BundleRows
from weir.contracts.index_delta import takes_deltas
from weir.contracts.variants import MAIN
from weir.trainer.export.clusters import Clusters
from weir.trainer.export.compaction import Compaction
from weir.trainer.export.content import Content, Line
from weir.trainer.export.draft import Complete, Delta, Difference, Placed
from weir.trainer.export.drafting import (
    calls_for_compaction,
    calls_for_repair,
    complete,
    delta_of,
    empty_for,
    filled,
    info_for,
    known_lists,
    lists_by_row,
    placed_in,
    repaired_in,
    without_lists,
)
from weir.trainer.export.fit import is_outgrown
from weir.trainer.export.kept import Kept, Lists
from weir.trainer.export.making import Making
from weir.trainer.export.noting import is_known, note_published, publish_all
from weir.trainer.export.opened import OpenBundles
from weir.trainer.export.opening import Opening
from weir.trainer.export.servable import Servable
from weir.trainer.export.training import Training
from weir.trainer.state.trainer_state import TrainerState

__all__ = ["Keeper"]

logger = logging.getLogger(__name__)

_MEASURED: Final = 1 / 32
"""Rows published since the recall of the index was measured, as a share of all, at which it is measured again."""

_LARGE: Final = 1 << 16
"""Items from which on an export of all of them is made beside the stream: of fewer it takes half a second."""


@dataclass
class Keeper:
    """Drafts each export from the one before; one thread calls it, or that of `making`, which exports wait for.

    With `beside`, chains are compacted beside the stream; without, a complete bundle ends a long chain. Exports of all
    of at least `large` items are made beside it, too: `making` is the one that goes on. If the next export `is_last`,
    nothing is started for one that follows. `compared` is the share of all items that the newest export has looked at,
    `variant` the line that is exported.
    """

    clock: Callable[[], float] = time.time
    beside: bool = False
    variant: str = MAIN
    large: int = _LARGE
    is_last: bool = False
    compared: float = 1.0
    making: Making | None = None
    _kept: Kept | None = None
    _opening: Opening | None = None
    _training: Training | None = None
    _compaction: Compaction | None = None
    _opened: OpenBundles = field(default_factory=OpenBundles)

    def start(self, log: BundleLog) -> None:
        """Open the newest bundle of a store beside what comes before it is needed."""
        self._opening = Opening(log)

    def _take_opened(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None and (found := opening.result()) is not None:
            servable, self._kept = found
            self._opened.add(servable)

    def open(self, log: BundleLog, manifest: BundleManifest) -> Servable:
        """Return a bundle that answers, as `Servable.open`; those used last stay in memory."""
        self._take_opened()
        return self._opened.open(log, manifest)

    def read(self, log: BundleLog, manifest: BundleManifest) -> Servable:
        """Return a bundle that was just written, read from its own files."""
        return self._opened.read(log, manifest)

    def resume(self, log: BundleLog) -> None:
        """Go on from the newest bundle of a store, unless something is kept already or that bundle is of no use."""
        self._take_opened()
        if self._kept is not None or not (manifests := log.manifests()):
            return
        try:
            self._kept = Kept.of(self.open(log, manifests[-1]))
        except (CorruptArtefactError, FileNotFoundError) as error:
            logger.warning("the next bundle is complete, with an index from nothing: %s", error)

    def forget_other(self, manifest: BundleManifest) -> None:
        """Go on from what the store holds, unless this bundle is kept."""
        if self._kept is not None and self._kept.manifest != manifest:
            self._kept = None

    def content(self, log: BundleLog, state: TrainerState) -> Content:
        """Read of a state what an export has to compare.

        That is the rows that may have changed since the bundle that is kept, where the state knows them; otherwise the
        whole table. Where a step moves items that it does not touch, ranks find these.
        """
        self.resume(log)
        self._take_compacted(log)
        ref, line = self._ref(log), Line(log.store, self.variant)
        if self._kept is None or ref is None or not is_known(state, self._kept.manifest, ref):
            return Content.of(state, line)
        if state.featured is None:
            return Content.since(state, line)
        if not state.config.publish_bound:
            # All have moved.
            return Content.of(state, line)
        if not state.since.items.is_known:
            publish_all(state, self._kept.rows)
        return Content.since(state, line)

    def _ref(self, log: BundleLog) -> BundleRef | None:
        """Return what names the bundle that is kept; None where the store has it no more, or another one."""
        if self._kept is None:
            return None
        try:
            manifest, ref = log.manifest_and_ref(self._kept.manifest.version)
        except (CorruptArtefactError, FileNotFoundError):
            return None
        return ref if manifest == self._kept.manifest else None

    def draft_touched(self, log: BundleLog, content: Content) -> Delta | None:
        """Return the delta of the rows that were touched; None where it takes the whole table to go on."""
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
        """Return what to write for a whole content.

        Raises
        ------
        RuntimeError
            From FAISS, for a factory string that it does not know.
        """
        difference, empty, kind = self._difference(content), *empty_for(content)
        if not isinstance(empty, faiss.IndexIVF) or not takes_deltas(empty):
            delta = without_lists(log, difference, content, empty, kind, room=self._room) if difference else None
            return delta or complete(empty, kind, content, difference)
        trained = self._trained()
        lists = trained or (difference.kept.lists if difference else None)
        if lists is None or not lists.suits(empty, kind, content.state.config.index):
            return filled(content, Placed(*Clusters.trained(empty, kind, content.vectors)), difference)
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
        """Say whether to compare the index with exact search, which costs what the catalogue holds.

        With a delta of touched rows, only once so many rows were published since the last time that it costs little
        more than these.
        """
        fit = draft.info.fit
        if isinstance(draft, Complete) or draft.content.is_whole or fit is None or fit.recall is None:
            return True
        return fit.unmeasured + len(draft.items) >= _MEASURED * draft.content.total

    def note(self, log: BundleLog, draft: Complete | Delta, ref: BundleRef, servable: Servable | None) -> None:
        """Go on from the bundle `ref` that was written; without one that answers, from what the store holds."""
        self.compared = len(draft.content.rows) / draft.content.total
        if servable is None:
            self._kept = None
            return
        rows, lists, fit = servable.rows, None, servable.manifest.index.fit
        if draft.placed is not None and fit is not None:
            clusters = replace(draft.placed.clusters, fit=fit)
            lists = Lists(clusters, rows.item_rows, rows.vectors, lists_by_row(draft, draft.placed.assigned))
        free = draft.free() if isinstance(draft, Delta) else np.empty(0, np.int64)
        self._kept = Kept(servable.manifest, rows, free, lists)
        self._opened.add(servable)
        note_published(draft, rows, ref)
        if self.is_last:
            return
        is_long = isinstance(draft, Delta) and calls_for_compaction(draft)
        if self.beside and is_long and self._compaction is None:
            self._compaction = Compaction(log, self._kept, servable)
        if lists is not None:
            self._train_outgrown(lists.clusters.fit, draft.content, rows)

    def makes_beside(self, content: Content) -> bool:
        """Say whether an export of all items is to be made beside the stream."""
        return self.beside and content.total >= self.large

    @property
    def _room(self) -> int:
        """How many times a chain may reach its limits: no export waits for the compaction that was under way."""
        return 1 if self._compaction is None else 2

    def _take_compacted(self, log: BundleLog) -> None:
        """Go on from a chain that has been compacted."""
        if self._compaction is None or self._compaction.running or self._kept is None:
            return
        result, self._compaction = self._compaction.result, None
        try:
            found = result.under(log, self._kept) if result else None
        except (CorruptArtefactError, FileNotFoundError) as error:
            logger.warning("the chain goes on as it is: %s", error)
            return
        if found is not None:
            self._kept, servable = found
            self._opened.add(servable)

    def _difference(self, content: Content) -> Difference | None:
        """Compare with what is kept, unless that is of another shape."""
        tower, kept = content.state.config.tower, self._kept
        metric = "cosine" if tower.normalised else "inner_product"
        wanted = (tower.dimension, tower.history_length, metric)
        if kept is None or (kept.manifest.dimension, kept.manifest.history_length, kept.manifest.metric) != wanted:
            return None
        return Difference.of(kept, content, content.state.config.publish_bound)

    def _train_outgrown(self, fit: IndexFit, content: Content, rows: BundleRows) -> None:
        """Train all lists again beside the stream, on the rows of a bundle, if it is time."""
        every = content.state.config.index_training_every_seconds
        if self._training is None and is_outgrown(fit, content.total, self.clock(), every):
            self._training = Training(*empty_for(content), rows)

    @property
    def _has_trained(self) -> bool:
        return self._training is not None and not self._training.running

    def _trained(self) -> Lists | None:
        """Return what the training beside the stream has made, once."""
        if self._training is None or not self._has_trained:
            return None
        result, self._training = self._training.result, None
        return result
