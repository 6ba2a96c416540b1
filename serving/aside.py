"""A background thread for large requests and answers, so that they do not block the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from weir.serving.errors import QueueFullError

__all__ = ["Aside"]

Made = TypeVar("Made")

_WAITING: Final = 64
"""Most requests that may wait for the thread: they hold memory."""


class Aside:
    """Runs calls in one background thread; a refused client should wait `retry_after` seconds."""

    def __init__(self, retry_after: float) -> None:
        self._retry_after = retry_after
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weir-aside")
        self._waiting = 0

    def require_room(self) -> None:
        """Raise `QueueFullError` if too many calls wait."""
        if self._waiting >= _WAITING:
            raise QueueFullError(self._waiting, _WAITING, self._retry_after, "large requests")

    async def run(self, make: Callable[[], Made]) -> Made:
        """Run `make` in the thread; return its result, or raise what it raises."""
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, make)
        finally:
            self._waiting -= 1
