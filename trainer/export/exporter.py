"""Schedule exports and reviews of bundles, and handle their failures."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from weir.contracts import BundleLog, BundleManifest, CommitLog, CorruptArtefactError, EventClock, Store, WindowManifest
from weir.contracts.bundles.variants import MAIN, line_of, log_of
from weir.contracts.commits.commit_log import LogMismatchError
from weir.runtime.background import BackgroundTask
from weir.trainer.export.bundle import export_bundle
from weir.trainer.export.gate import CanaryReview, Gate, PairedGate, PromotionCheck, current_or_none
from weir.trainer.export.index import check_index
from weir.trainer.export.onnx_models import AwaitedError, is_traced
from weir.trainer.export.planner import ExportPlanner, recognise
from weir.trainer.export.servable import MOST, RecentCases
from weir.trainer.export.tracing import tracing_of
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.positives import SharedWindow
from weir.trainer.stream.metrics import TrainerMetrics

__all__ = ["Exporter"]

logger = logging.getLogger(__name__)

_PATIENCE: Final = 3.0
"""A follower that is behind exports again only after this multiple of the last export's duration."""


@dataclass
class Exporter:
    """Exports bundles of a variant on schedule, while other ranks wait, and reviews the promoted bundle.

    A follower that is behind (more committed windows are waiting) delays exports until it has caught up; with a
    permanent backlog, exports still get a third of the time. A bounded run exports every scheduled window. The first
    export waits for the background trace of the tower, and training with it: sharing the cores would delay the first
    bundle. A bundle made in the background is published when it is ready, before the next export starts.
    """

    store: Store
    config: TrainerConfig
    metrics: TrainerMetrics
    follows: bool = False
    variant: str = MAIN
    clock: Callable[[], float] = time.monotonic
    newest: BundleManifest | None = None
    _tried: tuple[int, int] | None = None
    _tracing: BackgroundTask[None] | None = None
    _what: str = ""
    _put_off: bool = False
    _warned: bool = False
    _seconds: float = 0.0
    _last: float = field(init=False)

    def __post_init__(self) -> None:
        check_index(self.config.index, self.config.tower.dimension)
        self._last = self.clock()
        self._recent = RecentCases(self.store, self.config)
        self._gate: Gate = PairedGate.of(self.config)
        self._planner = ExportPlanner(beside=self.follows, variant=self.variant)
        self._line = line_of(self.store, self.variant)
        self._promotion = PromotionCheck(self.store, self.config, self._gate, self.variant)
        self._is_pinned()

    def review(self, window: WindowManifest, shared: SharedWindow) -> None:
        """Test the promoted bundle on a window before training on the window; collective. Failures are logged."""
        drawn = shared.sampled(self.config.seed, window.sequence, MOST)
        if not shared.workers.is_first:
            return
        try:
            cases = self._recent.note(window, drawn)
            withdrawal = CanaryReview(self._line, self._gate, self._planner.open).review(window, cases)
        except Exception:
            logger.exception("the promoted bundle could not be tested on window %s; training continues", window.name)
            return
        if withdrawal is not None:
            logger.error(
                "bundle %s is withdrawn, %s is served again: %s",
                withdrawal.version,
                withdrawal.fallback,
                withdrawal.verdict,
            )
            self.metrics.rollbacks.inc()

    def challenge(self) -> None:
        """Promote a variant that has beaten the champion, if the settings allow it; call it regularly."""
        if self.variant != MAIN and self._promotion.decide() is not None:
            self.metrics.crowned.inc()

    def due(self, state: TrainerState) -> bool:
        """Return whether `export_if_due` would export, or publish a bundle made in the background."""
        if state.position.trained_sequence < 0:
            return False
        if (making := self._planner.making) is not None:
            self._put_off |= _place(state) != self._tried and self._is_scheduled(state)
            return not making.running
        if _place(state) == self._tried or not self._has_items(state):
            return False
        if not (self._put_off or self._is_scheduled(state)):
            return False
        may_wait = self.follows and self.clock() - self._last < _PATIENCE * self._seconds
        self._put_off = may_wait and self._is_behind(state)
        return not self._put_off

    def _has_items(self, state: TrainerState) -> bool:
        """Return whether there are items to serve; warn once if there are none after a window."""
        if len(state.table):
            return True
        if state.embeddings.workers.is_first and not self._warned:
            self._warned = True
            logger.warning(
                "no bundle after window %s: there is no item; one counts once it has occurred trainer.admit_after = %g "
                "times",
                *(state.position.trained_window, self.config.admit_after),
            )
        return False

    def _is_scheduled(self, state: TrainerState) -> bool:
        """Return whether the settings ask for an export now, by time or by windows."""
        if self.config.export_every_seconds is not None:
            return self.clock() - self._last >= self.config.export_every_seconds
        return (state.position.trained_sequence + 1) % self.config.export_every_windows == 0

    def _is_behind(self, state: TrainerState) -> bool:
        """Return whether the newest commit is at least two ahead of the newest trained window."""
        head = CommitLog(self.store).head()
        return head is not None and head.sequence > state.position.trained_sequence + 1

    def export_if_due(self, state: TrainerState) -> None:
        """Export or publish if it is due; call it between windows, and regularly while waiting for the next window."""
        if not self.due(state):
            return
        if self._planner.making is not None:
            self._publish(state)
        else:
            self._export(state)

    def publish_made(self, state: TrainerState) -> None:
        """Publish the bundle made in the background, if it is ready; collective, allowed between any two steps."""
        workers, making = state.embeddings.workers, self._planner.making
        if workers.any(making is not None and not making.running):
            workers.first(partial(self._publish, state), state.answer)

    def open_newest(self) -> None:
        """Start to open the newest bundle in the background: the review of the first window needs it."""
        self._planner.start(BundleLog(self._line))

    def prepare(self, state: TrainerState) -> None:
        """Prepare the first export of a loaded state: compare the commit logs, and trace the tower in the background.

        Also records in the state whether the newest bundle was made from it, which its checkpoint does not say.
        """
        self._compare_logs(BundleLog(self._line))
        recognise(BundleLog(self._line), state)
        if self.follows and not is_traced(self.config.tower):
            self._tracing = tracing_of(self.config.tower)

    def _compare_logs(self, log: BundleLog) -> None:
        """Warn if the promoted bundle was trained on the windows of another commit log."""
        if (version := current_or_none(log)) is None:
            return
        try:
            manifest = log.manifest(version)
        except (CorruptArtefactError, FileNotFoundError) as error:
            logger.warning("the promoted bundle is not compared with the commit log: %s", error)
            return
        try:
            CommitLog(self.store).require(f"bundle {version}", manifest.trained_sequence, manifest.trained_commit)
        except LogMismatchError as error:
            logger.warning("%s: it stays promoted, and is not tested up to pane %d", error, manifest.trained_sequence)
        except CorruptArtefactError as error:
            logger.warning("the promoted bundle is not compared with the commit log: %s", error)

    def export(self, state: TrainerState) -> None:
        """Do the last export of the run, unless this state has been exported; failures are logged and counted.

        An export in the background may take `last_bundle_seconds`; after that it is left to the next run, so that a
        stop does not wait until the lists of millions of items are trained.
        """
        self._planner.is_last = True
        until = self.clock() + self.config.last_bundle_seconds
        if self._publishes_by(state, until):
            self._export(state)
            self._publishes_by(state, until)

    def _publishes_by(self, state: TrainerState, until: float) -> bool:
        """Publish the background export if it ends in time; return whether none is running now."""
        making = self._planner.making
        if making is None:
            return True
        if not making.wait(max(until - self.clock(), 0)):
            logger.warning("the bundle %s is left to the next run: this one ends before it is made", self._what)
            return False
        self._publish(state)
        return True

    def _export(self, state: TrainerState) -> None:
        """Start an export of a state, unless it was tried before or has no items."""
        if _place(state) == self._tried or not self._has_items(state):
            return
        self._last, self._tried = self.clock(), _place(state)
        self._what = f"of window {state.position.trained_window}, step {state.position.step},"
        if self._tracing is not None:
            self._tracing.wait()
        self._publish(state)

    def _publish(self, state: TrainerState) -> None:
        """Export a state, or finish the background export; log and count failures."""
        try:
            self.newest = export_bundle(self._line, state, self._recent, self._gate, self._planner)
            pinned = self._is_pinned()
        except AwaitedError as reason:
            logger.info("%s", reason)
            return
        except Exception:
            logger.exception("the bundle %s could not be exported; training continues", self._what)
            self.metrics.outcomes.labels("failed").inc()
            return
        self._seconds = self.clock() - self._last
        self.metrics.compared.set(self._planner.compared)
        self.metrics.exported(self.newest, self._seconds, EventClock.of(self.store), pinned=pinned)

    def _is_pinned(self) -> bool:
        """Return whether promotion is blocked by a pin, and set the metric; an unreadable pin blocks, too."""
        try:
            pinned = log_of(self.store, self.variant).pin() is not None
        except CorruptArtefactError:
            pinned = True
        self.metrics.pinned.set(pinned)
        return pinned


def _place(state: TrainerState) -> tuple[int, int]:
    """Return the stream position of a state, unique within a run."""
    return state.position.trained_sequence, state.position.step
