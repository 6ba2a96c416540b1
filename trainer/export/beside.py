"""Threads that work beside the stream."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import faiss

__all__ = ["beside"]

_NICENESS: Final = 10
"""The stream comes first; where a thread cannot have a priority of its own, it shares the processor equally."""


def beside(
    name: str, work: Callable[[], None], *, is_awaited: bool = False, niceness: int = _NICENESS
) -> threading.Thread:
    """Start a thread of low priority; a process that ends waits for it only where it `is_awaited`.

    `niceness` is how far its priority is below that of the process.
    """

    def run() -> None:
        with suppress(OSError):
            # Relative: nobody may raise a priority, and a trainer may have been started with a low one.
            lower = os.getpriority(os.PRIO_PROCESS, 0) + niceness
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), lower)
        faiss.omp_set_num_threads(1)  # OpenMP keeps this per thread
        work()

    thread = threading.Thread(target=run, name=name, daemon=not is_awaited)
    thread.start()
    return thread
