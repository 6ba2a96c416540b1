"""Follows ``bundles/CURRENT``: loads what is promoted and swaps it in; what cannot be loaded changes nothing."""

import logging
import time
from dataclasses import dataclass, field

from contracts import BundleLog, CorruptArtefactError, EventClock, Store
from serving.bundle import LoadedBundle, load_bundle
from serving.index import Device
from serving.metrics import BundleMetrics

__all__ = ["BundleWatcher"]

log = logging.getLogger(__name__)


@dataclass
class BundleWatcher:
    """Holds the served bundle in `bundle`; readers take the reference once per request.

    One thread calls `refresh`. A refused version is not tried again until another one is promoted: bundles are never
    rewritten, so it would fail again. A store that cannot be read is asked again at the next call.
    """

    store: Store
    metrics: BundleMetrics
    device: Device = "cpu"
    threads: int = 1
    bundle: LoadedBundle | None = None
    _refused: str | None = field(default=None, init=False)
    _failing: str | None = field(default=None, init=False)

    def refresh(self) -> bool:
        """Load the promoted bundle unless it is served already; say whether it was swapped in."""
        try:
            version = BundleLog(self.store).current()
            if version is None or version == self._refused or (self.bundle and self.bundle.version == version):
                return False
            self._swap(version)
        except CorruptArtefactError as error:
            self._refused = version
            self.metrics.refused.inc()
            log.error("bundle %s is refused, %s stays: %s", version, self._serving, error)
            return False
        except OSError as error:
            self._complain(str(error))
            return False
        self._failing = None
        return True

    def _swap(self, version: str) -> None:
        start = time.perf_counter()
        loaded = load_bundle(BundleLog(self.store), version, self.device, self.threads)
        seconds = time.perf_counter() - start
        happened = EventClock.of(self.store).wall_time(loaded.manifest.max_event_ms)
        before, self.bundle = self.bundle, loaded
        self._refused = None
        self.metrics.load_seconds.observe(seconds)
        self.metrics.served(loaded, before, happened)
        log.info("serving bundle %s: %d items, loaded in %.2f s", version, loaded.items, seconds)

    def _complain(self, problem: str) -> None:
        """Log a failure of the store once, not at every poll."""
        if problem != self._failing:
            self.metrics.refused.inc()
            log.error("the promoted bundle cannot be read, %s stays: %s", self._serving, problem)
            self._failing = problem

    @property
    def _serving(self) -> str:
        return "none" if self.bundle is None else self.bundle.version
