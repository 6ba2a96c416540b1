"""Orderly end of a process: a signal sets an event, and tasks end with their server.

A signal handler runs in the main thread, between any two of its instructions. `Event.set` in it would deadlock on the
lock that the main thread holds within `Event.wait`, so the handler only hands the signal to a thread that sets it.
"""

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Coroutine, Iterator
from queue import SimpleQueue
from typing import Any, Final

__all__ = ["all_ended", "ended_by_signals", "first_of", "stop_signal"]

logger = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def ended_by_signals(stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """Yield `stop`, or a new event, which SIGTERM and SIGINT set while inside.

    No effect outside the main thread, which alone gets signals.
    """
    stop = stop or threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    arrived = SimpleQueue[int | None]()  # its `put` may interrupt itself
    thread = threading.Thread(target=_set, args=(stop, arrived), name="weir-signals", daemon=True)
    thread.start()
    previous = {number: signal.signal(number, lambda number, _frame: arrived.put(number)) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        arrived.put(None)
        thread.join()


def _set(stop: threading.Event, arrived: "SimpleQueue[int | None]") -> None:
    while (number := arrived.get()) is not None:
        logger.info("%s: ending", signal.Signals(number).name)
        stop.set()


def stop_signal(*numbers: signal.Signals) -> asyncio.Event:
    """Return an event of the running loop that is set by one of the signals, by default SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    for number in numbers or _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of the coroutines ends, and cancel the others."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    _, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()


async def all_ended(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end; log failed tasks."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            logger.error("a task of the server had failed", exc_info=result)
