"""Background threads of exports, which end when the training loop ends."""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final
from weakref import WeakSet

import faiss

from weir.contracts import BundleManifest

__all__ = ["BackgroundBuild", "beside", "none_left"]


_NICENESS: Final = 10
"""The stream has priority; on platforms without a priority per thread, both share the processor equally."""

_PATIENCE_SECONDS: Final = 10.0
"""Seconds to wait for threads to end. A library call may take as long as writing a file."""

_LOOK_SECONDS: Final = 0.1
_AT_ONCE_SECONDS: Final = 1e-9
"""FAISS takes 0 as no limit."""

_UNAWAITED: Final[WeakSet[threading.Thread]] = WeakSet()


def beside(
    name: str, work: Callable[[], None], *, is_awaited: bool = False, niceness: int = _NICENESS
) -> threading.Thread:
    """Start a background thread that runs `work`.

    Parameters
    ----------
    name
        Name of the thread.
    work
        The function to run.
    is_awaited
        Whether the process waits for the thread when it exits; otherwise `none_left` ends the thread.
    niceness
        Added to the niceness of the process: a higher value lowers the priority of the thread.
    """

    def run() -> None:
        with suppress(OSError):
            # Relative to the process, which may have a low priority already: raising a priority is not allowed.
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
    """Context manager that ends all threads that are not awaited when it is left.

    At exit, Python stops a running thread when the thread next acquires the GIL. Inside FAISS this aborts the process,
    with the exit status of a failure.
    """
    try:
        yield
    finally:
        until = time.monotonic() + _PATIENCE_SECONDS
        for thread in filter(threading.Thread.is_alive, list(_UNAWAITED)):
            _end(thread, until)


def _end(thread: threading.Thread, until: float) -> None:
    """Interrupt a thread and its calls of FAISS, and wait for its end until the monotonic time `until`."""
    while thread.is_alive() and time.monotonic() < until:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        faiss.TimeoutCallback.reset(_AT_ONCE_SECONDS)
        thread.join(_LOOK_SECONDS)
    # Let later calls of FAISS run again.
    faiss.PythonInterruptCallback.reset()


class BackgroundBuild:
    """A bundle that is made in a thread.

    `make` runs in the thread, does all work that needs no state, and returns the function that finishes the bundle. The
    thread has normal priority, since no newer bundle is published before it ends.
    """

    def __init__(self, make: Callable[[], Callable[[], BundleManifest]]) -> None:
        self._make = make
        self._finish: Callable[[], BundleManifest] | None = None
        self._error: Exception | None = None
        self._thread = beside("weir-bundle-export", self._run, niceness=0)

    @property
    def running(self) -> bool:
        """Whether the thread is still running."""
        return self._thread.is_alive()

    def has_ended(self, within: float) -> bool:
        """Wait for the thread for at most `within` seconds; return whether it has ended."""
        self._thread.join(within)
        return not self.running

    def finish(self) -> BundleManifest:
        """Wait for the thread, finish the bundle in the calling thread, and return its manifest.

        Raises the error of the thread.
        """
        self._thread.join()
        if self._finish is None:
            raise self._error or RuntimeError("the thread that makes a bundle was ended")
        return self._finish()

    def _run(self) -> None:
        try:
            self._finish = self._make()
        except Exception as error:  # noqa: BLE001 - raised in `finish`
            self._error = error
