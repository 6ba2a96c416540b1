"""Runs work in a daemon thread, so that the process can exit while, for example, a large file is fetched."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

__all__ = ["in_daemon"]


async def in_daemon(call: Callable[[], None]) -> None:
    """Run `call` in a new daemon thread and wait until it ends; raises the errors of `call`."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    failures: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
            failures.append(error)
        finally:
            # The loop is closed if the server has stopped meanwhile.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="weir-fetch", daemon=True).start()
    await done.wait()
    for error in failures:
        raise error
