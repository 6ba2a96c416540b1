"""One call in a thread of its own, with a result that is asked for later.

A daemon thread lets the process exit while, for example, a large file is fetched.
"""

import asyncio
import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

__all__ = ["BackgroundTask", "in_daemon"]


T = TypeVar("T")


class BackgroundTask(Generic[T]):
    """Runs `call` in a new thread with this `name`.

    `result` waits for the end of the call, and returns its result or raises its error, each time it is asked for. Only
    `result` reports an error. The process waits for the thread at its exit only if it `is_awaited`.
    """

    def __init__(self, name: str, call: Callable[[], T], *, is_awaited: bool = False) -> None:
        self._result: T
        self._error: Exception | None = RuntimeError(f"the thread {name} was ended before it had a result")
        # Passed to the thread, which drops the call at its end: it may hold large arrays.
        self._thread = threading.Thread(target=self._run, args=(call,), name=name, daemon=not is_awaited)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the thread is still running."""
        return self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the thread, at most this long; return whether it has ended."""
        self._thread.join(seconds)
        return not self.running

    def result(self) -> T:
        """Wait for the call, and return its result; raises its error, or `RuntimeError` after an `interrupt`."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result

    def interrupt(self) -> None:
        """Raise `SystemExit` in the thread as soon as it runs Python code."""
        thread = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SystemExit))

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._result = call()
            self._error = None
        except Exception as error:  # noqa: BLE001 - raised in `result`
            self._error = error
        except SystemExit:
            pass  # interrupted


async def in_daemon(call: Callable[[], T]) -> T:
    """Run `call` in a new daemon thread and wait for it; return its result or raise its error."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> T:
        try:
            return call()
        finally:
            # The loop is closed if the server has stopped meanwhile.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

    task = BackgroundTask("weir-fetch", run)
    await done.wait()
    return task.result()
