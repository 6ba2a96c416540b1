"""Iterate over the committed windows in order, alike on all ranks, until the end or a stop."""

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Final

from weir.contracts import RetiredError, WindowLog, WindowManifest
from weir.trainer.ranks.workers import Workers

__all__ = ["StopSignal", "windows"]

logger = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignal(AbstractContextManager["StopSignal"]):
    """Context manager that turns SIGTERM and SIGINT into a flag, checked between steps; in the main thread only."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, _frame: FrameType | None) -> None:
        logger.info("stopping at the next step: %s", signal.Signals(number).name)
        self.requested = True


def windows(
    log: WindowLog, after: int, workers: Workers, stop: StopSignal, *, follow: bool, poll_seconds: float
) -> Iterator[WindowManifest | None]:
    """Yield the windows committed after a sequence, and None after each empty poll; alike on all ranks.

    Rank 0 polls and broadcasts each commit: on a shared disk, ranks may see a new file at different times. A stop
    of any rank stops all. Windows removed by retention are skipped with a warning.
    """
    while True:
        found = workers.broadcast(_next(log, after) if workers.is_first else ())
        if workers.any(stop.requested) or (not found and not follow):
            return
        if not found:
            yield None
            time.sleep(poll_seconds)
        for manifest in found:
            if workers.any(stop.requested):
                return
            yield manifest
            after = manifest.sequence


def _next(log: WindowLog, after: int) -> tuple[WindowManifest, ...]:
    """Return the panes of the next commit, or of the first retained one, with a warning about removed panes."""
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
