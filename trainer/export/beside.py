"""Threads that work beside the stream, and end with it."""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final
from weakref import WeakSet

import faiss

__all__ = ["beside", "none_left"]

_NICENESS: Final = 10
"""The stream comes first; where a thread cannot have a priority of its own, it shares the processor equally."""

_PATIENCE_SECONDS: Final = 10.0
"""For threads that are to end. A call into a library may take as long as writing a file does."""

_LOOK_SECONDS: Final = 0.1
_AT_ONCE_SECONDS: Final = 1e-9
"""FAISS takes 0 for no limit."""

_UNAWAITED: Final[WeakSet[threading.Thread]] = WeakSet()


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
        with suppress(SystemExit):
            faiss.omp_set_num_threads(1)  # OpenMP keeps this per thread
            work()

    thread = threading.Thread(target=run, name=name, daemon=not is_awaited)
    if not is_awaited:
        _UNAWAITED.add(thread)
    thread.start()
    return thread


@contextmanager
def none_left() -> Iterator[None]:
    """End the threads that nothing waits for when inside is left.

    Python stops a thread that outlives it where it next wants to run. Within FAISS that aborts the process, whose exit
    status then says that it has failed.
    """
    try:
        yield
    finally:
        until = time.monotonic() + _PATIENCE_SECONDS
        for thread in filter(threading.Thread.is_alive, list(_UNAWAITED)):
            _end(thread, until)


def _end(thread: threading.Thread, until: float) -> None:
    """Raise `SystemExit` in a thread, which ends it, and have FAISS raise an error there; wait for its end."""
    while thread.is_alive() and time.monotonic() < until:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        faiss.TimeoutCallback.reset(_AT_ONCE_SECONDS)
        thread.join(_LOOK_SECONDS)
    # What FAISS is asked for next is computed again.
    faiss.PythonInterruptCallback.reset()
