"""Keeps the lists of the index between exports, so that an export assigns only the items that are new or have moved.

Training takes minutes for millions of items. It is waited for only where there are no lists at all. Otherwise items
that the lists no longer fit cause a local repair within the export, and growth, age or repairs that do not help
cause a training beside the stream, which a later export takes over.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from contracts import BundleLog, CorruptArtefactError, IndexFit, IndexInfo
from contracts.item_rows import ItemRows
from trainer.export.clusters import Assigned, Clusters
from trainer.export.content import Content
from trainer.export.fit import is_outgrown, is_unfit, may_repair
from trainer.export.index import empty_index, factory, info_of
from trainer.export.kept import Kept
from trainer.export.training import Training

__all__ = ["Built", "IndexKeeper"]

logger = logging.getLogger(__name__)


class Built(NamedTuple):
    """An index over the items of a content, in order, and what the manifest says about it."""

    index: Any
    info: IndexInfo


@dataclass
class IndexKeeper:
    """Builds the index of each export from that of the one before; one thread calls it."""

    clock: Callable[[], float] = time.time
    _kept: Kept | None = None
    _training: Training | None = None

    def resume(self, log: BundleLog) -> None:
        """Go on from the newest bundle of a store, unless something is kept already or that bundle is of no use."""
        if self._kept is not None or not (manifests := log.manifests()):
            return
        try:
            self._kept = Kept.open(log, manifests[-1])
        except (CorruptArtefactError, FileNotFoundError) as error:
            logger.warning("the lists of the index are trained from nothing: %s", error)

    def build(self, content: Content) -> Built:
        """Return the index over all vectors of a content.

        Raises
        ------
        RuntimeError
            From FAISS, for a factory string that it does not know or that asks for more items than there are.
        """
        vectors, config = content.vectors, content.state.config
        kind = factory(len(vectors), config.index)
        empty = empty_index(vectors.shape[1], kind)
        if not Clusters.supports(empty):
            self._kept = None
            empty.train(vectors)
            empty.add(vectors)
            return Built(empty, info_of(empty, kind, config.nprobe))
        clusters, assigned = self._assigned(content, empty, kind)
        self._kept = Kept(clusters, ItemRows.of(content.keys), vectors, assigned)
        index = clusters.filled(vectors, assigned.lists)
        return Built(index, info_of(index, clusters.kind, config.nprobe, clusters.fit))

    def note(self, fit: IndexFit | None) -> None:
        """Take the fit as the manifest has it: with the recall, which the next export looks at."""
        if self._kept is not None and fit is not None:
            self._kept = replace(self._kept, clusters=replace(self._kept.clusters, fit=fit))

    def _assigned(self, content: Content, empty: Any, kind: str) -> tuple[Clusters, Assigned]:
        kept, config = self._trained() or self._kept, content.state.config
        if kept is None or not kept.suits(empty, kind, config.index):
            return Clusters.trained(empty, kind, content.vectors)
        known = kept.known(content.keys, content.vectors, config.publish_bound)
        clusters, assigned = _placed(kept.clusters, content.vectors, known)
        outgrown = is_outgrown(clusters.fit, len(content.vectors), self.clock(), config.index_training_every_seconds)
        if outgrown and self._training is None:
            self._training = Training(empty, kind, content)
        return clusters, assigned

    def _trained(self) -> Kept | None:
        """Return what the training beside the stream has made, once."""
        if self._training is None or self._training.running:
            return None
        result, self._training = self._training.result, None
        return result


def _placed(clusters: Clusters, vectors: npt.NDArray[np.float32], known: Assigned) -> tuple[Clusters, Assigned]:
    """Assign what has no list, and repair the lists if that shows them to fit badly."""
    changed = np.flatnonzero(known.lists < 0)
    found = clusters.assign(vectors[changed])
    known.lists[changed], known.cosines[changed] = found
    unfit = float((found.cosines < clusters.fit.cosine).mean()) if len(changed) else 0.0
    clusters = replace(clusters, fit=clusters.fit.model_copy(update={"changed": len(changed), "unfit": unfit}))
    if not is_unfit(clusters.fit) or not may_repair(clusters.fit):
        return clusters, known
    repaired = clusters.repaired(vectors, known)
    if repaired is not None:
        logger.info("of %d items %.0f %% fit no list: now there are %d", len(changed), 100 * unfit, repaired[0].lists)
    return repaired or (clusters, known)
