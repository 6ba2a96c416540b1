"""Work in a thread that the end of the process does not wait for: fetching a large file may take minutes."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

__all__ = ["in_daemon"]


async def in_daemon(call: Callable[[], None]) -> None:
    """Run a call in a daemon thread of its own, and wait for it; raises what it raises."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    failures: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
            failures.append(error)
        finally:
            # The loop is closed where the server has stopped meanwhile.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="weir-fetch", daemon=True).start()
    await done.wait()
    for error in failures:
        raise error
