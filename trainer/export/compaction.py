"""Compaction of a chain of deltas into one complete bundle, in the background.

The rows of a published version never change, so a thread of low priority can write them while training and exports
continue. The complete bundle replaces the delta of this version: it has the same rows, vectors and lists. Servers that
start read it, and later exports build on it; servers that already serve the chain, and training, are not affected.
"""

import logging
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from weir.contracts import PADDING_KEY, BundleFile, BundleLog, BundleManifest
from weir.contracts.bundles.files import MappedFiles
from weir.runtime.background import BackgroundTask
from weir.trainer.export.background import beside
from weir.trainer.export.files import write_compacted
from weir.trainer.export.servable import Servable, searched_in
from weir.trainer.export.snapshot import ByRow, PublishedSnapshot

__all__ = ["Compacted", "compact", "start_compaction"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Compacted:
    """The compacted bundle in memory and, if exports reuse the lists of its index, the list of each row."""

    servable: Servable
    assigned: ByRow | None

    def under(self, log: BundleLog, kept: PublishedSnapshot) -> tuple[PublishedSnapshot, Servable] | None:
        """Return a later version of the chain, rebuilt on the compacted bundle, as a snapshot and a servable.

        `kept` is the later version as built on the old chain. Only the deltas after the compacted version are read.
        None if `kept` does not build on the compacted version. Raises as `Servable.open`.
        """
        start = self.servable.manifest
        if log.chain(kept.manifest, [start])[0] != start:
            return None
        later = replace(Servable.open(log, kept.manifest, [self.servable]), manifest=kept.manifest)
        rows, lists = later.rows, None
        if kept.lists is not None and self.assigned is not None:
            since = rows.keys.over
            live, gone = since.keys[since.values != PADDING_KEY], since.keys[since.values == PADDING_KEY]
            assigned = self.assigned.replaced(live, kept.lists.assigned.take(live), gone)
            lists = replace(kept.lists, item_rows=rows.item_rows, vectors=rows.vectors, assigned=assigned)
        return PublishedSnapshot(kept.manifest, rows, kept.free, lists), later


def start_compaction(log: BundleLog, kept: PublishedSnapshot, servable: Servable) -> BackgroundTask[Compacted | None]:
    """Compact the chain of a published version in a thread that is not awaited at exit.

    The result is None if the compaction failed.
    """
    return beside("weir-bundle-compaction", partial(_compact_or_log, log, kept, servable))


def _compact_or_log(log: BundleLog, kept: PublishedSnapshot, servable: Servable) -> Compacted | None:
    """Compact a chain; log an error and return None if this fails."""
    version = kept.manifest.version
    try:
        compacted = compact(log, kept, servable)
    except Exception:
        logger.exception("the chain of bundle %s could not be compacted; it stays", version)
        return None
    logger.info("the chain of bundle %s, %d deltas, is compacted", version, kept.manifest.depth)
    return compacted


def compact(log: BundleLog, kept: PublishedSnapshot, servable: Servable) -> Compacted:
    """Write the complete bundle that replaces a published delta (`kept` and `servable`), and return it in memory.

    Raises
    ------
    CorruptArtefactError
        If the manifest of the delta is damaged, or a file of its base bundle.
    FileNotFoundError
        If the delta has been removed.
    """
    delta, ref = log.manifest_and_ref(kept.manifest.version)
    complete = {"schema_version": 1, "parent": None, "base": None, "depth": 0, "changed": 0, "removed": 0}
    manifest = delta.model_copy(update={**complete, "compacts": ref})
    rows = servable.rows
    index = servable.index.merged(rows.vectors, np.asarray(rows.live))
    wanted = (BundleFile.TOWER, BundleFile.SCORER, BundleFile.FEATURES, BundleFile.USER_FEATURES)
    there = {entry.name for entry in delta.files}
    model = {name: log.read(delta, name) for name in wanted if name in there}
    files = write_compacted(log.store, manifest, rows, index, model)
    manifest = manifest.model_copy(update={"files": files})
    _verify_again(log, delta)
    log.manifest(delta.version)  # raises if it was removed meanwhile: the new files would belong to no bundle
    log.commit(manifest)
    del index  # read back below, memory-mapped
    assigned = None if kept.lists is None else kept.lists.assigned.merged()
    written = MappedFiles(log, manifest)
    index = written.opened(BundleFile.INDEX, searched_in)
    whole = replace(servable, manifest=manifest, index=index, rows=rows.merged(written))
    return Compacted(whole, assigned)


def _verify_again(log: BundleLog, delta: BundleManifest) -> None:
    """Verify again the files of the base bundle, which were copied from a memory map.

    Pages of a mapped file are not verified when they are read later. Files of a remote store need no check: they were
    copied to this machine before.
    """
    base = log.chain(delta)[0]
    for name in (BundleFile.INDEX, BundleFile.EMBEDDINGS, BundleFile.VECTORS) if log.store.local_path else ():
        with log.store.local(base.folder, base.file(name)):
            pass
