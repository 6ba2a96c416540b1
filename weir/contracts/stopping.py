"""How a process that follows something ends when it is told to: a signal sets an event.

A handler runs in the main thread, between any two of its instructions: `Event.set` there waits for ever for a lock that
the main thread holds within `Event.wait`. So the handler only hands the signal to a thread, which sets the event.
"""

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Final

__all__ = ["ended_by_signals"]

logger = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def ended_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM and SIGINT while inside. Only the main thread gets signals; another one asks for none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived = SimpleQueue[int | None]()  # its `put` may interrupt itself
    thread = threading.Thread(target=_set, args=(stop, arrived), name="weir-signals", daemon=True)
    thread.start()
    previous = {number: signal.signal(number, lambda number, _frame: arrived.put(number)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        arrived.put(None)
        thread.join()


def _set(stop: threading.Event, arrived: "SimpleQueue[int | None]") -> None:
    while (number := arrived.get()) is not None:
        logger.info("%s: ending", signal.Signals(number).name)
        stop.set()
