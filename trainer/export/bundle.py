"""A bundle: the state of the model, as files that can be served."""

import io
import logging
import time
from importlib.metadata import version

import numpy as np
import numpy.typing as npt

from contracts import BundleFile, BundleLog, BundleManifest, CorruptArtefactError, FileEntry, IndexInfo, Store
from contracts.artefacts import write_table
from trainer.export.cases import Cases, RecentCases
from trainer.export.content import Content
from trainer.export.errors import ExportError
from trainer.export.gate import Evidence, Gate, PairedGate, Verdict
from trainer.export.index import serialised
from trainer.export.keeper import IndexKeeper
from trainer.export.servable import Servable
from trainer.export.soundness import fault_of
from trainer.export.tower import tower_to_onnx
from trainer.export.trial import Trial, current_or_none
from trainer.state.evaluation import mean_metrics
from trainer.state.trainer_state import TrainerState

__all__ = ["export_bundle"]

logger = logging.getLogger(__name__)


def export_bundle(
    store: Store,
    state: TrainerState,
    recent: RecentCases | None = None,
    gate: Gate | None = None,
    keeper: IndexKeeper | None = None,
) -> BundleManifest:
    """Write the bundle of a state, let the gate judge it, promote it if it passes, and retire old ones.

    A bundle that exists already is not written again, only promoted where that had been missed. While an operator's
    pin holds, nothing is promoted.

    Parameters
    ----------
    store, state
        Where to, and what.
    recent
        The events to compare on; read from the store's windows unless given.
    gate
        What decides; the one of the settings unless given.
    keeper
        What was kept of the export before; read from the store unless given.

    Raises
    ------
    ExportError
        If the table has no item, or the tower does not survive the translation.
    """
    if not len(state.table):
        raise ExportError("the item table is empty: there is nothing to serve before the first window")
    export = _Export(
        store,
        state,
        recent or RecentCases(store, state.config),
        gate or PairedGate.of(state.config),
        keeper or IndexKeeper(),
    )
    manifest = export.existing() or export.write()
    logger.info("bundle %s: %s", manifest.version, manifest.verdict)
    export.publish(manifest)
    export.retire()
    return manifest


class _Export:
    """One export."""

    def __init__(self, store: Store, state: TrainerState, recent: RecentCases, gate: Gate, keeper: IndexKeeper) -> None:
        self.store, self.state, self.recent, self.gate, self.keeper = store, state, recent, gate, keeper
        self.log, self.content = BundleLog(store), Content.of(state)

    def existing(self) -> BundleManifest | None:
        """Return the manifest if this bundle exists already; a damaged one is written again."""
        try:
            return self.log.manifest(self.content.version)
        except FileNotFoundError:
            return None
        except CorruptArtefactError as error:
            logger.error("bundle %s is written again: %s", self.content.version, error)
            return None

    def write(self) -> BundleManifest:
        """Write the files, ask the gate, and commit the bundle."""
        manifest = self._draft(*self._files())
        manifest, verdict = self._judge(manifest)
        sentence = verdict.sentence
        if verdict.promoted and (pinned := _pinned(self.log)):
            sentence = f"held: {pinned}; otherwise {sentence}"
        manifest = manifest.model_copy(update={"promoted": verdict.promoted, "verdict": sentence})
        self.log.commit(manifest)
        self.keeper.note(manifest.index.fit)
        return manifest

    def publish(self, manifest: BundleManifest) -> None:
        """Promote a bundle that the gate let through, unless another one is pinned or it was withdrawn."""
        name = manifest.version
        try:
            if manifest.promoted and self.log.withdrawal(name) is None and current_or_none(self.log) != name:
                self.log.publish(name)
        except (CorruptArtefactError, FileNotFoundError) as error:
            # A pin that cannot be read, or whose bundle is gone, still expresses what an operator wants.
            logger.error("bundle %s is not promoted: %s", name, error)

    def retire(self) -> None:
        """Remove old bundles, except those that may be needed again."""
        try:
            spare = Trial.read(self.store).reference
            self.log.retire(self.state.config.bundles_kept, [spare] if spare else [])
        except CorruptArtefactError as error:
            logger.error("no bundle is retired: %s", error)

    def _draft(self, files: list[FileEntry], index: IndexInfo) -> BundleManifest:
        at, tower = self.state.position, self.state.config.tower
        return BundleManifest(
            version=self.content.version,
            created_at=time.time(),
            trained_sequence=max(at.trained_sequence, 0),
            trained_window=at.trained_window,
            max_event_ms=at.max_event_ms,
            items=len(self.content.vectors),
            dimension=tower.dimension,
            metric="cosine" if tower.normalised else "inner_product",
            history_length=tower.history_length,
            index=index,
            evaluation=mean_metrics(self.state.recent),
            promoted=False,
            verdict="",
            software_version=version("weir"),
            files=tuple(files),
        )

    def _files(self) -> tuple[list[FileEntry], IndexInfo]:
        content, config, folder = self.content, self.state.config, f"bundles/{self.content.version}"
        self.keeper.resume(self.log)
        index, info = self.keeper.build(content)
        entries = [
            self.store.write(f"{folder}/{BundleFile.INDEX}", serialised(index), rows=len(content.vectors)),
            write_table(self.store, f"{folder}/{BundleFile.ITEMS}", content.items()),
            self._write(f"{folder}/{BundleFile.EMBEDDINGS}", content.embeddings),
            self._write(f"{folder}/{BundleFile.VECTORS}", content.vectors),
            self.store.write(f"{folder}/{BundleFile.TOWER}", tower_to_onnx(self.state.tower, config.tower)),
        ]
        return entries, info

    def _write(self, name: str, array: npt.NDArray[np.float32]) -> FileEntry:
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        return self.store.write(name, buffer.getvalue(), rows=len(array))

    def _judge(self, candidate: BundleManifest) -> tuple[BundleManifest, Verdict]:
        """Ask the gate, and add what was measured to the manifest.

        Raises `CorruptArtefactError` where the candidate itself cannot be read back.
        """
        if fault := fault_of(self.content):
            return candidate, self.gate.before(fault, Evidence())
        cases = self.recent.up_to(self.state.position.trained_sequence)
        servable = Servable.open(self.log, candidate)
        candidate, new = _with_recall(candidate, servable, cases), servable.hits(cases, self.gate.cutoff)
        try:
            promoted = self.log.current()
            if promoted is None:
                return candidate, Verdict(promoted=True, sentence="promoted: the first bundle")
            old = Servable.open(self.log, self.log.manifest(promoted)).hits(cases, self.gate.cutoff)
        except (CorruptArtefactError, FileNotFoundError) as error:
            logger.error("no bundle to compare with: %s", error)
            sentence = f"promoted: the current bundle cannot be compared with ({error})"
            return candidate, Verdict(promoted=True, sentence=sentence)
        return candidate, self.gate.before(None, Evidence.of(new, old))


def _with_recall(manifest: BundleManifest, servable: Servable, cases: Cases) -> BundleManifest:
    """Add the recall of an index whose lists are kept, on the newest cases; the first one is the standard."""
    fit = manifest.index.fit
    if fit is None or not len(cases):
        return manifest
    recall = servable.index_recall(cases)
    trained = recall if fit.recall_trained is None else fit.recall_trained
    fit = fit.model_copy(update={"recall": recall, "recall_trained": trained})
    return manifest.model_copy(update={"index": manifest.index.model_copy(update={"fit": fit})})


def _pinned(log: BundleLog) -> str | None:
    """Say what keeps bundles from being promoted, or None."""
    try:
        pin = log.pin()
    except CorruptArtefactError as error:
        return f"pinned, but the pin cannot be read: {error}"
    return None if pin is None else pin.sentence
