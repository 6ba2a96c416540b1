"""When bundles are exported, and what happens when that fails: nothing else."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from contracts import BundleManifest, EventClock, Store
from trainer.config import TrainerConfig
from trainer.export.bundle import bundle_version, export_bundle
from trainer.export.tower import trace_tower
from trainer.metrics import TrainerMetrics
from trainer.state import TrainerState

__all__ = ["Exporter"]

logger = logging.getLogger(__name__)


@dataclass
class Exporter:
    """Exports on schedule; lives on rank 0. The others go on until they need its gradients."""

    store: Store
    config: TrainerConfig
    metrics: TrainerMetrics
    clock: Callable[[], float] = time.monotonic
    newest: BundleManifest | None = None
    _tried: str | None = None
    _last: float = field(init=False)

    def __post_init__(self) -> None:
        self._last = self.clock()

    def export_if_due(self, state: TrainerState) -> None:
        """Export if the schedule says so; call it between windows, and now and then while none comes."""
        if state.position.learnt_sequence < 0:
            self._prepare()
            return
        if bundle_version(state) == self._tried:
            return
        if self.config.export_every_seconds is not None:
            due = self.clock() - self._last >= self.config.export_every_seconds
        else:
            due = (state.position.learnt_sequence + 1) % self.config.export_every_windows == 0
        if due:
            self.export(state)

    def _prepare(self) -> None:
        """Trace the tower while the first window is awaited, so that the first bundle need not wait for it."""
        # If it fails, the first export will say so.
        with suppress(Exception):
            trace_tower(self.config.tower)

    def export(self, state: TrainerState) -> None:
        """Export now, unless this very state has been exported; a failure is logged and counted."""
        name = bundle_version(state)
        if name == self._tried or not len(state.table):
            return
        begun = self._last = self.clock()
        self._tried = name
        try:
            self.newest = export_bundle(self.store, state)
        except Exception:
            logger.exception("bundle %s could not be exported; training goes on", name)
            self.metrics.outcomes.labels("failed").inc()
            return
        self.metrics.exported(self.newest, self.clock() - begun, EventClock.of(self.store))
