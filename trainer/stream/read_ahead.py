"""Prefetch of the next window while the current one is trained on."""

import logging
from threading import Thread

from weir.contracts import WindowLog, WindowManifest
from weir.trainer.config import TrainerConfig
from weir.trainer.ranks.workers import Workers
from weir.trainer.step.shared_window import SharedWindow

__all__ = ["ReadAhead"]

logger = logging.getLogger(__name__)


class ReadAhead:
    """Reads a rank's part of the next window in advance, in a daemon thread.

    The data is spooled to disk, beside the sharded batches of the current window: together they need no more space than
    one window during sharding. Ranks read independently; collectives on the window come later.

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
        self._thread: Thread | None = None
        self._found: tuple[WindowManifest, SharedWindow] | None = None

    def start(self, after: int) -> None:
        """Start to read the window after a sequence, if it is committed; call `read` before the next `start`."""
        self._thread = Thread(target=self._look, args=(after,), name="read-ahead", daemon=True)
        self._thread.start()

    def read(self, manifest: WindowManifest) -> SharedWindow:
        """Return the prefetched window, or read it now; raises as `SharedWindow.read`."""
        if self._thread is not None:
            self._thread.join()
        found, self._found, self._thread = self._found, None, None
        # The manifest differs if users were erased from the window meanwhile.
        return found[1] if found is not None and found[0] == manifest else self._read(manifest)

    def _look(self, after: int) -> None:
        try:
            for manifest in self._log.next(after)[:1]:
                self._found = manifest, self._read(manifest)
        except Exception as error:  # noqa: BLE001 - whatever it is, `read` reads the window again
            logger.info("the window after %d was not read ahead: %s", after, error)

    def _read(self, manifest: WindowManifest) -> SharedWindow:
        return SharedWindow.read(self._log, manifest, self._config, self._workers)
