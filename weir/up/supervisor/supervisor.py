"""Run several child processes as one unit: if one gives up, all stop."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from weir.contracts import UserError
from weir.up.supervisor.child import Child, ChildSpec, Death

__all__ = ["GaveUpError", "Supervisor"]


class GaveUpError(UserError):
    """A process died repeatedly; the message has its name, its log file and the last lines of that."""

    def __init__(self, child: Child, death: Death) -> None:
        tail = "\n".join(f"    {line}" for line in death.tail)
        super().__init__(
            f"{death.name} {death.status}, {child.spec.patience} times in a row; "
            f"its last lines, from {child.log_file}:\n{tail}"
        )

    def explain(self) -> list[str]:
        """Return the lines of the message."""
        return str(self).split("\n")


class Supervisor:
    """Keeps children alive while other work is done.

    Parameters
    ----------
    specs
        The processes in the order in which they start and stop: sources first.
    folder
        Folder of their log files.
    say
        Called with a process name and a line to show.
    grace
        Seconds that a process has to exit after SIGTERM.
    """

    def __init__(
        self, specs: list[ChildSpec], folder: Path, say: Callable[[str, str], None], grace: float = 30.0
    ) -> None:
        self.children = [Child(spec, folder, say) for spec in specs]
        by_name = {child.spec.name: child for child in self.children}
        for child in self.children:
            if child.spec.starts_after is not None:
                other, text = child.spec.starts_after
                child.may_start = by_name[other].shows(text)
        self.grace = grace
        self._say = say
        self._signals = 0
        self._stop = asyncio.Event()

    def has_finished(self, name: str) -> bool:
        """Return whether the child `name`, one that may end, has exited with status 0."""
        return any(child.finished for child in self.children if child.spec.name == name)

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run the children until `work` is done, a signal arrives, or a child keeps dying.

        All children have ended when this returns or raises. Raises `GaveUpError`, or what `work` raised.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        keepers = [asyncio.create_task(self._keep(child)) for child in self.children]
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(work()), asyncio.create_task(self._stop.wait())]
        try:
            await self._first_end(tasks, keepers)
        finally:
            await self._end([*tasks, *keepers])
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def _first_end(self, tasks: Sequence["asyncio.Future[Any]"], keepers: Sequence[asyncio.Task[None]]) -> None:
        """Wait for the work, a signal, or a failed keeper task; keepers that end normally are ignored."""
        pending: set[asyncio.Future[Any]] = {*tasks, *keepers}
        while True:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if any(task in done for task in tasks):
                return

    async def _keep(self, child: Child) -> None:
        try:
            await child.keep_alive()
        except Death as death:
            raise GaveUpError(child, death) from None

    async def _end(self, tasks: list["asyncio.Future[Any]"]) -> None:
        for child in self.children:
            # Mark all of them first, so that their exits are neither reported nor followed by a restart.
            child.begin_stop()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*(child.stop(self.grace) for child in self.children))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            self._say("weir", "stopping; a second signal kills")
            self._stop.set()
            return
        for child in self.children:
            child.kill()
