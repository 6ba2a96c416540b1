"""Keeps what is published between exports, so that an export assigns and writes only what is new or has moved.

Training lists takes minutes for millions of items. Where there are none at all, an export waits for it; that of a
follower, while its stream goes on. Otherwise items that the lists no longer fit cause a local repair within the export,
and growth, age or repairs that do not help cause a training beside the stream, which a later export takes over.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import faiss
import numpy as np
import numpy.typing as npt

from contracts import BundleLog, BundleManifest, CorruptArtefactError, IndexFit, IndexInfo
from contracts.bundle_manifest import BundleRef
from contracts.index_delta import takes_deltas
from trainer.export.clusters import Assigned, Clusters
from trainer.export.content import Content
from trainer.export.draft import Complete, Delta, Difference, Placed
from trainer.export.errors import ListsAwaitedError
from trainer.export.fit import is_outgrown, is_unfit, may_repair
from trainer.export.index import empty_index, factory, info_of
from trainer.export.kept import Kept, Lists
from trainer.export.servable import Servable
from trainer.export.training import Training

__all__ = ["Keeper"]

logger = logging.getLogger(__name__)

_MOST: Final = 0.25
"""Rows that the deltas of a chain may describe together, as a share of the complete bundle's."""

_SERVABLES: Final = 3
"""Bundles in memory, at most: the newest, the promoted and the one confirmed last."""


@dataclass
class Keeper:
    """Drafts each export from the one before; one thread calls it.

    With `beside`, an export without any lists does not train them itself: it raises `ListsAwaitedError`, and they are
    trained beside the stream.
    """

    clock: Callable[[], float] = time.time
    beside: bool = False
    _kept: Kept | None = None
    _training: Training | None = None
    _awaited: bool = False
    _servables: list[Servable] = field(default_factory=list)

    def open(self, log: BundleLog, manifest: BundleManifest) -> Servable:
        """Return a bundle that answers, as `Servable.open`; those used last stay in memory."""
        servable = Servable.open(log, manifest, self._servables)
        self._servables = [servable, *(one for one in self._servables if one is not servable)][:_SERVABLES]
        return servable

    def read(self, log: BundleLog, manifest: BundleManifest) -> Servable:
        """Return a bundle that was just written, read from its own files."""
        others = [one for one in self._servables if one.manifest.version != manifest.version]
        return Servable.open(log, manifest, others)

    def resume(self, log: BundleLog) -> None:
        """Go on from the newest bundle of a store, unless something is kept already or that bundle is of no use."""
        if self._kept is not None or not (manifests := log.manifests()):
            return
        try:
            self._kept = Kept.of(self.open(log, manifests[-1]))
        except (CorruptArtefactError, FileNotFoundError) as error:
            logger.warning("the next bundle is complete, with an index from nothing: %s", error)

    @property
    def is_awaiting(self) -> bool:
        """Whether an export should wait for lists, because there are none."""
        return self._awaited and self._training is not None and self._training.running

    def wait(self) -> None:
        """Wait for lists that are awaited."""
        if self._awaited and self._training is not None:
            self._training.wait()

    def forget(self) -> None:
        """Go on from what the store holds."""
        self._kept = None

    def draft(self, log: BundleLog, content: Content) -> Complete | Delta:
        """Return what to write for a content.

        Raises
        ------
        ListsAwaitedError
            With `beside`, if there are no lists yet: come again when `is_awaiting` is over.
        RuntimeError
            From FAISS, for a factory string that it does not know or that asks for more items than there are.
        """
        self.resume(log)
        difference = self._difference(content)
        return replace(self._draft(log, content, difference), moved=difference.share if difference else None)

    def _draft(self, log: BundleLog, content: Content, difference: Difference | None) -> Complete | Delta:
        config, vectors = content.state.config, content.vectors
        kind = factory(len(vectors), config.index)
        empty = empty_index(vectors.shape[1], kind)
        if not isinstance(empty, faiss.IndexIVF) or not takes_deltas(empty):
            delta = None
            if difference is not None and takes_deltas(empty) and difference.kept.manifest.index.type == kind:
                delta = _delta(log, difference, content, info_of(empty, kind, config.nprobe))
            return delta or _complete(empty, kind, content)
        trained = self._trained()
        lists = trained or (difference.kept.lists if difference else None)
        if lists is None or not lists.suits(empty, kind, config.index):
            self._await_lists(empty, kind, content)
            return _filled(content, Placed(*Clusters.trained(empty, kind, vectors)))
        if trained is not None or difference is None:
            known, difference = lists.known(content.keys, vectors, config.publish_bound), None
        else:
            known = lists.assigned.take(np.where(difference.moved, -1, difference.rows))
        placed = _placed(lists.clusters, vectors, known)
        if self._training is None and self._is_outgrown(placed.clusters.fit, content):
            self._training = Training(empty, kind, content.keys, vectors)
        delta = None
        if difference is not None:
            delta = _delta(log, difference, content, _info(content, placed), placed)
        return delta or _filled(content, placed)

    def _await_lists(self, empty: Any, kind: str, content: Content) -> None:
        """Let lists be trained beside the stream, and leave; once, so that an export can tell why that failed."""
        if self.beside and not self._awaited:
            self._awaited = True
            self._training = self._training or Training(empty, kind, content.keys, content.vectors)
            raise ListsAwaitedError("the lists of the index are trained beside the stream, the export comes then")

    def note(self, draft: Complete | Delta, servable: Servable | None) -> None:
        """Go on from a bundle that was written; without one that answers, from what the store holds."""
        if servable is None:
            self._kept = None
            return
        self._awaited = False
        rows, lists, fit = servable.rows, None, servable.manifest.index.fit
        if draft.placed is not None and fit is not None:
            clusters, assigned = draft.placed
            if isinstance(draft, Delta):
                assigned = _by_row(assigned, draft.places, len(rows))
            lists = Lists(replace(clusters, fit=fit), rows.item_rows, rows.vectors, assigned)
        self._kept = Kept(servable.manifest, rows, lists)
        self._servables = [servable, *self._servables][:_SERVABLES]

    def _difference(self, content: Content) -> Difference | None:
        """Compare with what is kept, unless that is of another shape."""
        tower, kept = content.state.config.tower, self._kept
        metric = "cosine" if tower.normalised else "inner_product"
        wanted = (tower.dimension, tower.history_length, metric)
        if kept is None or (kept.manifest.dimension, kept.manifest.history_length, kept.manifest.metric) != wanted:
            return None
        return Difference.of(kept, content, content.state.config.publish_bound)

    def _is_outgrown(self, fit: IndexFit, content: Content) -> bool:
        every = content.state.config.index_training_every_seconds
        return is_outgrown(fit, len(content.vectors), self.clock(), every)

    def _trained(self) -> Lists | None:
        """Return what the training beside the stream has made, once."""
        if self._training is None or self._training.running:
            return None
        result, self._training = self._training.result, None
        return result


def _complete(empty: Any, kind: str, content: Content) -> Complete:
    empty.train(content.vectors)
    empty.add(content.vectors)
    return Complete(empty, info_of(empty, kind, content.state.config.nprobe))


def _filled(content: Content, placed: Placed) -> Complete:
    index = placed.clusters.filled(content.vectors, placed.assigned.lists)
    info = info_of(index, placed.clusters.kind, content.state.config.nprobe, placed.clusters.fit)
    return Complete(index, info, placed)


def _info(content: Content, placed: Placed) -> IndexInfo:
    clusters = placed.clusters
    return info_of(clusters.empty, clusters.kind, content.state.config.nprobe, clusters.fit)


def _delta(
    log: BundleLog, difference: Difference, content: Content, info: IndexInfo, placed: Placed | None = None
) -> Delta | None:
    """Return the delta that publishes a difference; None where a complete bundle is due."""
    kept, moves, appended = difference.kept, np.zeros(len(difference.rows), np.bool_), None
    if kept.lists is not None and placed is not None:
        moves = kept.lists.assigned.take(difference.rows).lists != placed.assigned.lists
        appended = placed.clusters.centroids()[kept.lists.clusters.lists :]
    items, places, removed = difference.rows_for(moves)
    stored = _stored(log, kept.manifest)
    if stored is None or kept.manifest.depth >= content.state.config.bundle_chain:
        return None
    ref, described = stored
    if described + len(items) > _MOST * len(kept.rows.vectors.base):
        return None
    return Delta(kept, ref, info, items, places, removed, placed, appended)


def _stored(log: BundleLog, kept: BundleManifest) -> tuple[BundleRef, int] | None:
    """Return what names the bundle that is kept, and how many rows the deltas of its chain describe.

    None where the store no longer has that bundle, or not its chain.
    """
    try:
        manifest, ref = log.manifest_and_ref(kept.version)
        chain = log.chain(manifest)
    except (CorruptArtefactError, FileNotFoundError) as error:
        logger.error("the next bundle is complete, the newest one cannot be built on: %s", error)
        return None
    return (ref, sum(one.changed for one in chain)) if manifest == kept else None


def _by_row(assigned: Assigned, places: npt.NDArray[np.int64], rows: int) -> Assigned:
    """Return the lists of items by their rows, `places` (n,), of so many `rows`."""
    lists, cosines = np.full(rows, -1, np.int64), np.zeros(rows, np.float32)
    lists[places], cosines[places] = assigned
    return Assigned(lists, cosines)


def _placed(clusters: Clusters, vectors: npt.NDArray[np.float32], known: Assigned) -> Placed:
    """Assign what has no list, and repair the lists if that shows them to fit badly."""
    changed = np.flatnonzero(known.lists < 0)
    found = clusters.assign(vectors[changed])
    known.lists[changed], known.cosines[changed] = found
    unfit = float((found.cosines < clusters.fit.cosine).mean()) if len(changed) else 0.0
    clusters = replace(clusters, fit=clusters.fit.model_copy(update={"changed": len(changed), "unfit": unfit}))
    if not is_unfit(clusters.fit) or not may_repair(clusters.fit):
        return Placed(clusters, known)
    repaired = clusters.repaired(vectors, known)
    if repaired is not None:
        logger.info("of %d items %.0f %% fit no list: now there are %d", len(changed), 100 * unfit, repaired[0].lists)
    return Placed(*(repaired or (clusters, known)))
