"""The thread that writes served lists to the store, and removes old ones."""

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Final

from weir.contracts import Store
from weir.contracts.served import hour_of, served_hours, write_served
from weir.serving.metrics import ServedMetrics
from weir.serving.problems import Problems
from weir.serving.served.config import ServedConfig
from weir.serving.served.lists import Batch, ServedLists

__all__ = ["ServedWriter"]

log = logging.getLogger(__name__)

_SECONDS_BETWEEN_REMOVALS: Final = 600.0
_LAST_SECONDS: Final = 5.0
"""Most seconds that a stopping server waits for its last file."""


@dataclass
class ServedWriter:
    """Writes the collected `lists` every `flush_seconds`, if there are any.

    A failed write is retried; meanwhile `lists` fills up, and drops lists beyond its limit. Only `close` waits for this
    thread.
    """

    store: Store
    config: ServedConfig
    lists: ServedLists
    metrics: ServedMetrics
    _batch: Batch | None = field(default=None, init=False)
    _removed_at: float = field(default=-float("inf"), init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _problems: Problems = field(default_factory=lambda: Problems(log), init=False)

    def start(self) -> None:
        """Start the thread if `share` is above 0."""
        if self.config.share:
            # A daemon thread: the process must be able to exit although the store hangs.
            self._thread = threading.Thread(target=self._run, name="weir-served", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write the remaining lists, and warn if the store takes too long."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_LAST_SECONDS)
            if self._thread.is_alive() or self._batch is not None:
                log.warning("the last served lists may be lost: the store did not take them in time")

    def flush(self) -> None:
        """Write the collected lists to a file, and remove old ones if due; failures are counted and logged once."""
        try:
            self._write()
            self._remove_old()
            self._problems.over()
        except Exception as error:  # noqa: BLE001 - object stores have errors of their own, which are no OSErrors
            self.metrics.errors.inc()
            self._problems.report(error, "served lists are not written, or not removed", level=logging.WARNING)

    def _run(self) -> None:
        while not self._stop.wait(self.config.flush_seconds):
            self.flush()
        # A batch whose write had failed, then the lists since.
        for _ in range(2):
            self.flush()

    def _write(self) -> None:
        batch = self._batch or self.lists.take()
        if batch.lists:
            self._batch = batch
            write_served(self.store, batch.segment, batch.table())
            self.metrics.lists.labels("written").inc(len(batch.lists))
            self.metrics.files.inc()
        self._batch = None

    def _remove_old(self) -> None:
        if time.monotonic() - self._removed_at < _SECONDS_BETWEEN_REMOVALS:
            return
        # A folder holds lists up to 3,600 seconds after its hour's start.
        oldest = hour_of(time.time() - 86_400 * self.config.keep_days - 3600)
        for hour, folder in served_hours(self.store).items():
            if hour < oldest:
                self.store.remove(folder)
                log.info("removed the served lists of %s", hour)
        self._removed_at = time.monotonic()
