"""How a driver ends when it is told to."""

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["ended_by_signals"]

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def ended_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM and SIGINT; only the main thread may ask for signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: Any) -> None:
        logger.info("%s: ending", signal.Signals(number).name)
        stop.set()

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
