"""Export of a bundle: write the state of the model as files that can be served, pass the gate, publish.

A follower exports all items of a large table in a thread, from a snapshot, while it trains on. Changes since the
snapshot are left to the next export.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Self

from weir.contracts import BundleFile, BundleLog, BundleManifest, CommitLog, CorruptArtefactError, Store
from weir.contracts.base.models import CommitRef
from weir.contracts.bundles.manifest import Recipe, Stretch
from weir.contracts.bundles.variants import MAIN, line_of, version_of
from weir.contracts.storage.format import software_version
from weir.trainer.export.background import beside
from weir.trainer.export.content import fault_of, fault_of_items
from weir.trainer.export.files import write_complete, write_delta
from weir.trainer.export.gate import CanaryEvaluation, Evidence, Gate, PairedGate, Verdict, current_or_none
from weir.trainer.export.onnx_models import AwaitedError, ExportError, scorer_to_onnx, tower_to_onnx
from weir.trainer.export.plan import Complete, Delta
from weir.trainer.export.planner import ExportPlanner
from weir.trainer.export.servable import Cases, RecentCases, Servable
from weir.trainer.items.rows import TableRows
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.progress import mean_metrics
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.model import Position

__all__ = ["ModelPart", "export", "export_bundle"]

logger = logging.getLogger(__name__)


class ModelPart(NamedTuple):
    """Model files and facts of the manifest, copied from a state, so that training can continue.

    `files` are the user tower and, if any, the scorer and the weights of item and user features, by name. `fault` is a
    sentence about a part of the state that is not finite, or None.
    """

    files: dict[str, bytes]
    position: Position
    evaluation: dict[str, float]
    stretches: tuple[Stretch, ...]
    trained_commit: CommitRef | None
    fault: str | None

    @classmethod
    def of(cls, state: TrainerState, touched: TableRows | None) -> Self:
        """Read a state. Collective, or called by rank 0 in `Workers.first`.

        Only the `touched` table rows (n,) are checked for finite numbers; None: all rows.

        Raises
        ------
        ExportError
            If a model cannot be converted to ONNX.
        """
        files: dict[str, bytes] = {BundleFile.TOWER: tower_to_onnx(state.tower, state.config.tower)}
        if state.second is not None:
            files[BundleFile.SCORER] = scorer_to_onnx(state.second.scorer)
        if state.featured is not None:
            files[BundleFile.FEATURES] = state.featured.weights.encode()
        if state.featured_users is not None:
            files[BundleFile.USER_FEATURES] = state.featured_users.weights.encode()
        evaluation, fault = mean_metrics(state.recent), fault_of(state, touched)
        return cls(files, replace(state.position), evaluation, state.stretches, state.trained_commit, fault)


def export_bundle(
    store: Store,
    state: TrainerState,
    recent: RecentCases | None = None,
    gate: Gate | None = None,
    planner: ExportPlanner | None = None,
) -> BundleManifest:
    """Write the bundle of a state, evaluate it in the gate, promote it if it passes, and remove old bundles.

    A bundle that exists is not written again, but promoted if that is still due. While an operator's pin holds, no
    bundle is promoted. If the planner has a background export, the call waits for this export and finishes it.

    Parameters
    ----------
    store
        Where the bundle is written; for a variant, its folder in the store.
    state
        The state to export.
    recent
        Events on which bundles are compared; None: read from the windows of `store`. The folder of a variant has no
        windows.
    gate
        Promotion rule; None: the rule of the settings.
    planner
        Planner with the data of the previous export; None: a new one, which reads the newest bundle.

    Raises
    ------
    AwaitedError
        If the bundle is now being made in a background thread: call again when the thread has ended.
    ExportError
        If the table has no items, or a model cannot be converted.
    """
    if planner is not None and planner.making is not None:
        making, planner.making = planner.making, None
        return making.result()()
    if not len(state.table):
        raise ExportError(
            "the item table is empty: there is nothing to serve before the first window, or before an item has "
            "occurred trainer.admit_after times"
        )
    export = _Export(
        store,
        state,
        recent or RecentCases(store, state.config),
        gate or PairedGate.of(state.config),
        planner or ExportPlanner(),
    )
    existing = export.existing()
    return export.write() if existing is None else export.published(existing)


class _Written(NamedTuple):
    """A bundle whose files are written, but not its manifest; `servable` is None if there is a `fault`."""

    manifest: BundleManifest
    draft: Complete | Delta
    cases: Cases
    servable: Servable | None
    fault: str | None


class _Export:
    """One export of a state; arguments as in `export_bundle`."""

    def __init__(
        self, store: Store, state: TrainerState, recent: RecentCases, gate: Gate, planner: ExportPlanner
    ) -> None:
        self.store, self.state, self.recent, self.gate, self.planner = store, state, recent, gate, planner
        self.log = BundleLog(store)
        self.content = planner.content(self.log, state)
        self.version = version_of(self.content.version, planner.variant)

    def existing(self) -> BundleManifest | None:
        """Return the manifest if the bundle exists; None if it is missing or damaged."""
        try:
            manifest = self.log.manifest(self.version)
            self.log.chain(manifest)
        except FileNotFoundError:
            return None
        except CorruptArtefactError as error:
            logger.error("bundle %s is written again: %s", self.version, error)
            return None
        # It is the newest bundle, the parent of the next one.
        self.planner.forget_other(manifest)
        return manifest

    def write(self) -> BundleManifest:
        """Write the files, run the gate, commit and publish the bundle.

        Raises `AwaitedError` if a background thread writes the files.
        """
        draft: Complete | Delta | None = self.planner.draft_touched(self.log, self.content)
        model = ModelPart.of(self.state, self.content.touched)
        cases = self.recent.up_to(self.state.position.trained_sequence)
        if draft is None and self.planner.makes_beside(self.content):
            self._start_background(model, cases)
            raise AwaitedError(f"bundle {self.version} is made beside the stream")
        draft = draft or self.planner.draft_whole(self.log, self.content.whole())
        return self._commit(self._written(draft, model, cases))

    def _start_background(self, model: ModelPart, cases: Cases) -> None:
        """Start to write the bundle in a thread, from a snapshot of the state."""
        snapshot = self.content.whole().snapshot()
        self.state.since.snapshot()

        def make() -> Callable[[], BundleManifest]:
            draft = self.planner.draft_whole(self.log, snapshot)
            return partial(self._commit, self._written(draft, model, cases))

        # At the stream's priority: until it ends, no newer bundle is published.
        self.planner.making = beside("weir-bundle-export", make, niceness=0)

    def _written(self, draft: Complete | Delta, model: ModelPart, cases: Cases) -> _Written:
        """Write the files of the bundle, open it and compute its hits, without access to the state.

        Raises `CorruptArtefactError` if the bundle cannot be read back.
        """
        manifest = self._manifest(draft, model, cases)
        if fault := model.fault or fault_of_items(draft.content):
            return _Written(manifest, draft, cases, None, fault)
        servable = self.planner.read(self.log, manifest)
        if self.planner.is_recall_due(draft):
            manifest = _with_recall(manifest, servable, cases)
        elif manifest.index.fit is not None:
            manifest = _with_fit(manifest, unmeasured=manifest.index.fit.unmeasured + manifest.changed)
        servable.hits(cases, self.gate.cutoff)  # cached for the gate
        return _Written(manifest, draft, cases, servable, None)

    def _commit(self, written: _Written) -> BundleManifest:
        """Run the gate, commit the bundle and publish it."""
        verdict = self._verdict(written)
        sentence = verdict.sentence
        if verdict.promoted and (pinned := _pinned(self.log)):
            sentence = f"held: {pinned}; otherwise {sentence}"
        manifest = written.manifest.model_copy(update={"promoted": verdict.promoted, "verdict": sentence})
        ref = self.log.commit(manifest)
        self.planner.note(
            self.log, written.draft, ref, written.servable and replace(written.servable, manifest=manifest)
        )
        return self.published(manifest)

    def published(self, manifest: BundleManifest) -> BundleManifest:
        """Promote a stored bundle if it is due, remove old bundles, and return the manifest."""
        logger.info("bundle %s: %s", manifest.version, manifest.verdict)
        self._publish(manifest)
        self._retire()
        return manifest

    def _publish(self, manifest: BundleManifest) -> None:
        """Promote a bundle that passed the gate, unless it was withdrawn; a pin of another bundle prevents it."""
        name = manifest.version
        try:
            if manifest.promoted and self.log.withdrawal(name) is None and current_or_none(self.log) != name:
                self.log.publish(name)
        except (CorruptArtefactError, FileNotFoundError) as error:
            # An unreadable pin, or one whose bundle is missing, still counts as the operator's decision.
            logger.error("bundle %s is not promoted: %s", name, error)

    def _retire(self) -> None:
        """Remove old bundles, except the newest, the confirmed and any in the window for rollbacks."""
        try:
            spare = CanaryEvaluation.read(self.store).reference
            config = self.state.config
            self.log.retire(config.bundles_kept, [spare] if spare else [], config.rollback_window_seconds)
        except CorruptArtefactError as error:
            logger.error("no bundle is retired: %s", error)

    def _manifest(self, draft: Complete | Delta, model: ModelPart, cases: Cases) -> BundleManifest:
        """Write the files of an export plan and return the bundle's manifest, without a verdict."""
        at, config = model.position, self.state.config
        tower, read = config.tower, cases.histories.shape[1]
        manifest = BundleManifest(
            version=self.version,
            variant=self.planner.variant,
            created_at=time.time(),
            trained_sequence=max(at.trained_sequence, 0),
            trained_window=at.trained_window,
            trained_commit=model.trained_commit,
            max_event_ms=at.max_event_ms,
            items=draft.content.total,
            dimension=tower.dimension,
            metric="cosine" if tower.normalised else "inner_product",
            history_length=tower.history_length,
            history_read=read if read < tower.history_length else None,
            index=draft.info,
            evaluation=model.evaluation,
            promoted=False,
            verdict="",
            software_version=software_version(),
            moved=draft.moved,
            rescored=config.rescoring.candidates if config.rescoring.on else None,
            recipe=Recipe(settings=config.recipe(), stretches=model.stretches),
            files=(),
        )
        if isinstance(draft, Complete):
            return manifest.model_copy(update={"files": write_complete(self.store, manifest, draft, model.files)})
        return manifest.model_copy(
            update={
                "schema_version": 2,
                "parent": draft.chain.ref,
                "base": draft.chain.base,
                "depth": draft.chain.deltas + 1,
                "changed": len(draft.items),
                "removed": len(draft.removed),
                "files": write_delta(self.store, manifest, draft, model.files),
            }
        )

    def _verdict(self, written: _Written) -> Verdict:
        """Return the gate's verdict on a bundle, compared with the promoted one."""
        if written.servable is None:
            return self.gate.before(written.fault, Evidence())
        new = written.servable.hits(written.cases, self.gate.cutoff)
        try:
            promoted = self.log.current()
            if promoted is None:
                return Verdict(promoted=True, sentence="promoted: the first bundle")
            old = self.planner.open(self.log, self.log.manifest(promoted)).hits(written.cases, self.gate.cutoff)
        except (CorruptArtefactError, FileNotFoundError) as error:
            logger.error("no bundle to compare with: %s", error)
            return Verdict(promoted=True, sentence=f"promoted: the current bundle cannot be compared with ({error})")
        return self.gate.before(None, Evidence.of(new, old))


def _with_recall(manifest: BundleManifest, servable: Servable, cases: Cases) -> BundleManifest:
    """Add the recall of an IVF index on the newest cases; the first value after training is the reference."""
    fit = manifest.index.fit
    if fit is None or not len(cases):
        return manifest
    recall = servable.index_recall(cases)
    trained = recall if fit.recall_trained is None else fit.recall_trained
    return _with_fit(manifest, recall=recall, recall_trained=trained, unmeasured=0)


def _with_fit(manifest: BundleManifest, **measured: float) -> BundleManifest:
    """Return a manifest with changed measurements of the index fit."""
    index = manifest.index
    fit = index.fit and index.fit.model_copy(update=measured)
    return manifest.model_copy(update={"index": index.model_copy(update={"fit": fit})})


def _pinned(log: BundleLog) -> str | None:
    """Return the reason why promotion is blocked by a pin, or None."""
    try:
        pin = log.pin()
    except CorruptArtefactError as error:
        return f"pinned, but the pin cannot be read: {error}"
    return None if pin is None else pin.sentence


def export(store: Store, config: TrainerConfig, variant: str = MAIN) -> BundleManifest:
    """Export a bundle from the newest checkpoint of a variant, with the settings `config`.

    Raises
    ------
    ExportError
        If there is no checkpoint, or the bundle cannot be made.
    CheckpointMismatchError
        If the checkpoint was made with other settings.
    LogMismatchError
        If the checkpoint was trained on the windows of another commit log.
    """
    line = line_of(store, variant)
    checkpoints, workers = CheckpointLog(line, config.checkpoints_kept), Workers()
    checkpoints.require_log(CommitLog(store), workers)
    state = checkpoints.load(checkpoints.continued(config, workers), workers)
    if state is None:
        raise ExportError(f"{line.path('checkpoints')}: holds no complete checkpoint; train first")
    return export_bundle(line, state, RecentCases(store, state.config), planner=ExportPlanner(variant=variant))
