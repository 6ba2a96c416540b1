"""Shutdown helpers: stop signals, and cancelling tasks."""

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

__all__ = ["all_ended", "first_of", "stop_signal"]

log = logging.getLogger(__name__)


def stop_signal(*numbers: signal.Signals) -> asyncio.Event:
    """Return an event of the running loop that is set by one of the signals, by default SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    for number in numbers or (signal.SIGTERM, signal.SIGINT):
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
            log.error("a task of the server had failed", exc_info=result)
