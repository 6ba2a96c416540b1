"""The next window is read while one is trained on."""

import logging
from threading import Thread

from weir.contracts import WindowLog, WindowManifest
from weir.trainer.config import TrainerConfig
from weir.trainer.ranks.workers import Workers
from weir.trainer.step.shared_window import SharedWindow

__all__ = ["ReadAhead"]

logger = logging.getLogger(__name__)


class ReadAhead:
    """Reads a rank's part of windows, one of them ahead, in a thread that no stop waits for.

    What has been read waits on disk, beside what is dealt of the window before: together they are no more than one
    window takes while it is dealt. Each rank reads ahead by itself; what it asks others for comes later.

    Parameters
    ----------
    log
        The windows.
    config
        What of them is read.
    workers
        The ranks.
    """

    def __init__(self, log: WindowLog, config: TrainerConfig, workers: Workers) -> None:
        # One of its own, since a log has a position.
        self._log, self._config, self._workers = WindowLog(log.store), config, workers
        self._thread: Thread | None = None
        self._found: tuple[WindowManifest, SharedWindow] | None = None

    def start(self, after: int) -> None:
        """Start to read the window that follows a sequence, if it is committed; call `read` before the next start."""
        self._thread = Thread(target=self._look, args=(after,), name="read-ahead", daemon=True)
        self._thread.start()

    def read(self, manifest: WindowManifest) -> SharedWindow:
        """Return a window: the one that was read ahead, or what is read now; raises what `SharedWindow.read` raises."""
        if self._thread is not None:
            self._thread.join()
        found, self._found, self._thread = self._found, None, None
        # Users may have been forgotten in it meanwhile.
        return found[1] if found is not None and found[0] == manifest else self._read(manifest)

    def _look(self, after: int) -> None:
        try:
            for manifest in self._log.next(after)[:1]:
                self._found = manifest, self._read(manifest)
        except Exception as error:  # noqa: BLE001 - whatever it is, the window is read again when its turn comes
            logger.info("the window after %d was not read ahead: %s", after, error)

    def _read(self, manifest: WindowManifest) -> SharedWindow:
        return SharedWindow.read(self._log, manifest, self._config, self._workers)
