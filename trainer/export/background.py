"""Background threads of exports, which end when the training loop ends."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar
from weakref import WeakSet

import faiss

from weir.runtime.background import BackgroundTask

__all__ = ["beside", "none_left"]


_NICENESS: Final = 10
"""The stream has priority; on platforms without a priority per thread, both share the processor equally."""

_PATIENCE_SECONDS: Final = 10.0
"""Seconds to wait for threads to end. A library call may take as long as writing a file."""

_LOOK_SECONDS: Final = 0.1
_AT_ONCE_SECONDS: Final = 1e-9
"""FAISS takes 0 as no limit."""

_UNAWAITED: Final[WeakSet[BackgroundTask[Any]]] = WeakSet()

T = TypeVar("T")


def beside(
    name: str, work: Callable[[], T], *, is_awaited: bool = False, niceness: int = _NICENESS
) -> BackgroundTask[T]:
    """Start `work` in a background thread, and return the task.

    Parameters
    ----------
    name
        Name of the thread.
    work
        The function to run.
    is_awaited
        Whether the process waits for the thread at exit; otherwise `none_left` ends the thread.
    niceness
        Added to the niceness of the process: a higher value lowers the priority of the thread.
    """

    def run() -> T:
        with suppress(OSError):
            # Relative to the process, which may have a low priority already: raising a priority is not allowed.
            lower = os.getpriority(os.PRIO_PROCESS, 0) + niceness
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), lower)
        faiss.omp_set_num_threads(1)  # OpenMP keeps this per thread
        return work()

    task = BackgroundTask(name, run, is_awaited=is_awaited)
    if not is_awaited:
        _UNAWAITED.add(task)
    return task


@contextmanager
def none_left() -> Iterator[None]:
    """Context manager that ends, on exit, all background threads for which the process does not wait.

    At exit, Python stops a running thread when the thread next acquires the GIL. Inside FAISS this aborts the process,
    with the exit status of a failure.
    """
    try:
        yield
    finally:
        until = time.monotonic() + _PATIENCE_SECONDS
        for task in [task for task in _UNAWAITED if task.running]:
            _end(task, until)


def _end(task: BackgroundTask[Any], until: float) -> None:
    """Interrupt a task and its calls of FAISS, and wait for its end until the monotonic time `until`."""
    while task.running and time.monotonic() < until:
        task.interrupt()
        faiss.TimeoutCallback.reset(_AT_ONCE_SECONDS)
        task.wait(_LOOK_SECONDS)
    # Let later calls of FAISS run again.
    faiss.PythonInterruptCallback.reset()
