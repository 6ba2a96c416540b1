"""The committed windows in order, the same on all ranks, with read-ahead of the next window."""

import logging
import threading
import time
from collections.abc import Iterator
from functools import partial

from weir.contracts import RetiredError, WindowLog, WindowManifest
from weir.runtime.background import BackgroundTask
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.positives import SharedWindow

__all__ = ["ReadAhead", "windows"]


logger = logging.getLogger(__name__)


class ReadAhead:
    """Reads a rank's part of the next window in advance, in a daemon thread, without collectives.

    The data is spooled to disk, beside the sharded batches of the current window: together they need no more space than
    one window during sharding.

    Parameters
    ----------
    log
        The windows.
    config
        Settings that choose the columns to read.
    workers
        The ranks.
    """

    def __init__(self, log: WindowLog, config: TrainerConfig, workers: Workers) -> None:
        # An own log, since a log has a read position.
        self._log, self._config, self._workers = WindowLog(log.store), config, workers
        self._task: BackgroundTask[tuple[WindowManifest, SharedWindow] | None] | None = None

    def start(self, after: int) -> None:
        """Start to read the first window after the sequence `after`; call `read` before the next `start`."""
        self._task = BackgroundTask("read-ahead", partial(self._look, after))

    def read(self, manifest: WindowManifest) -> SharedWindow:
        """Return the window of a manifest, if it was read in advance, or read it now; raises as `SharedWindow.read`."""
        found, self._task = None if self._task is None else self._task.result(), None
        # The manifest differs if users were erased from the window meanwhile.
        return found[1] if found is not None and found[0] == manifest else self._read(manifest)

    def _look(self, after: int) -> tuple[WindowManifest, SharedWindow] | None:
        try:
            for manifest in self._log.next(after)[:1]:
                return manifest, self._read(manifest)
        except Exception as error:  # noqa: BLE001 - whatever it is, `read` reads the window again
            logger.info("the window after %d was not read ahead: %s", after, error)
        return None

    def _read(self, manifest: WindowManifest) -> SharedWindow:
        return SharedWindow.read(self._log, manifest, self._config, self._workers)


def windows(
    log: WindowLog, after: int, workers: Workers, stop: threading.Event, *, follow: bool, poll_seconds: float
) -> Iterator[WindowManifest | None]:
    """Yield the windows committed after the sequence `after`, the same on all ranks.

    With `follow`, also yields None after each poll without a window, until a stop; otherwise ends after the newest
    window. Rank 0 polls and broadcasts each commit, since on a shared disk ranks may see a new file at different times.
    A stop of any rank stops all. Windows removed by retention are skipped with a warning.
    """
    while True:
        found = workers.broadcast(_next(log, after) if workers.is_first else ())
        if workers.any(stop.is_set()) or (not found and not follow):
            return
        if not found:
            yield None
            time.sleep(poll_seconds)
        for manifest in found:
            if workers.any(stop.is_set()):
                return
            yield manifest
            after = manifest.sequence


def _next(log: WindowLog, after: int) -> tuple[WindowManifest, ...]:
    """Return the panes of the next commit, or of the first retained one; warn about panes removed by retention."""
    try:
        found = log.next(after)
    except RetiredError as error:
        found = log.next(error.horizon.sequence - 1)
    if found and found[0].sequence > after + 1:
        logger.warning(
            "panes %d to %d have retired and are not trained on: training goes on with window %s",
            after + 1,
            found[0].sequence - 1,
            found[0].name,
        )
    return found
