"""Follows ``bundles/CURRENT``: loads what is promoted and swaps it in; what cannot be loaded changes nothing."""

import logging
import time
from dataclasses import dataclass, field

from contracts import BundleLog, CorruptArtefactError, EventClock, Store
from serving.bundle import LoadedBundle, load_bundle
from serving.index import Device
from serving.metrics import BundleMetrics
from serving.problems import Problems

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
    _problems: Problems = field(default_factory=lambda: Problems(log), init=False)

    def refresh(self) -> bool:
        """Load the promoted bundle unless it is served already; say whether it was swapped in. Raises nothing."""
        version = None
        try:
            version = BundleLog(self.store).current()
            if version is None or version == self._refused or (self.bundle and self.bundle.version == version):
                self._problems.over()
                return False
            self._swap(version)
        except CorruptArtefactError as error:
            self._refused = version or self._refused
            self._complain(error, version)
        except Exception as error:  # noqa: BLE001 - object stores have errors of their own, which are no OSErrors
            self._complain(error, version)
        else:
            self._problems.over()
            return True
        return False

    def _swap(self, version: str) -> None:
        start = time.perf_counter()
        loaded = load_bundle(BundleLog(self.store), version, self.device, self.threads, self.bundle)
        seconds = time.perf_counter() - start
        happened = self._happened(loaded.manifest.max_event_ms)
        before, self.bundle = self.bundle, loaded
        self._refused = None
        self.metrics.load_seconds.observe(seconds)
        self.metrics.served(loaded, before, happened)
        log.info("serving bundle %s: %d items, loaded in %.2f s", version, loaded.items, seconds)

    def _happened(self, event_ms: int) -> float:
        """Return when an event happened by the wall clock; NaN where the clock cannot be read: it is a metric."""
        try:
            return EventClock.of(self.store).wall_time(event_ms)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the clock, the bundle is good
            self._problems.report(error, "the time of the newest event is unknown")
            return float("nan")

    def _complain(self, error: Exception, version: str | None) -> None:
        """Log once what is wrong, and with which file."""
        serving = "none" if self.bundle is None else self.bundle.version
        current = self.store.path("bundles/CURRENT")
        # What a damaged file names may hold any character.
        what = current if version is None else f"{current}: bundle {ascii(version)[1:-1]}"
        if self._problems.report(error, f"{what} is refused, {serving} stays"):
            self.metrics.refused.inc()
