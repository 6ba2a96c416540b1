"""The signals that end a server."""

import asyncio
import signal

__all__ = ["stop_signal"]


def stop_signal(*numbers: signal.Signals) -> asyncio.Event:
    """Return an event of the running loop that is set as soon as one of the signals comes: SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    for number in numbers or (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped
