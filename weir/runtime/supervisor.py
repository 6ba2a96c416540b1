"""Runs processes that are restarted when they die and stopped together; the kernel ends them if their parent dies."""

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_exponential

from weir.contracts import UserError
from weir.runtime.parent import PARENT_VARIABLE

__all__ = [
    "Child",
    "ChildSpec",
    "Death",
    "GaveUpError",
    "Supervisor",
]

_IMPORTANT: Final = re.compile(r" (ERROR|CRITICAL|WARNING (?!root:))|^weir: |^E\d{4} |^[\w.]*(Error|Exception): ")
"""Lines of a child's output to show: weir's warnings and errors, and errors of failed commands and of torchrun.

Warnings of the root logger come from libraries.
"""
_TAIL_LINES: Final = 15
_TAIL_BYTES: Final = 1 << 16
_POLL_SECONDS: Final = 0.2


class Death(Exception):  # noqa: N818 - an event that leads to a retry, rarely an error of the caller
    """A process exited unexpectedly, soon after its start."""

    def __init__(self, name: str, status: str, tail: list[str]) -> None:
        super().__init__(f"{name} {status}")
        self.name = name
        self.status = status
        self.tail = tail


@dataclass(frozen=True)
class ChildSpec:
    """Command line and restart policy of a process.

    Parameters
    ----------
    name
        Short name of the process, for its log file and in front of its lines.
    command
        Program and arguments.
    environment
        All environment variables of the process.
    forever
        Whether an exit with status 0 counts as a failure; if not, the process is done then.
    patience
        Number of consecutive failures, each within `lasting` seconds of the start, before giving up.
    lasting
        Seconds after which a run counts as healthy.
    first_wait, longest_wait
        Seconds between a failure and the restart: the first, doubled each time, and their limit.
    starts_after
        Name of another process, and a text that its output must show before this process starts; None: start at once.
    """

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    forever: bool = True
    patience: int = 5
    lasting: float = 60.0
    first_wait: float = 0.5
    longest_wait: float = 15.0
    starts_after: tuple[str, str] | None = None


@dataclass
class Child:
    """A supervised process, restarted when it dies.

    Parameters
    ----------
    spec
        What to run.
    folder
        Folder of ``<name>.log``, which collects the output over all restarts.
    say
        Called with the process name and a line to show: warnings, errors, failures.
    """

    spec: ChildSpec
    folder: Path
    say: Callable[[str, str], None]
    restarts: int = 0
    finished: bool = False
    process: asyncio.subprocess.Process | None = None
    may_start: asyncio.Event | None = None
    _awaited: dict[str, asyncio.Event] = field(default_factory=dict)
    _stopping: bool = False
    _start: int = 0
    _seen: int = 0

    @property
    def log_file(self) -> Path:
        """The file that collects the output."""
        return self.folder / f"{self.spec.name}.log"

    def shows(self, text: str) -> asyncio.Event:
        """Return an event that is set as soon as a line of the output contains this text."""
        return self._awaited.setdefault(text, asyncio.Event())

    async def keep_alive(self) -> None:
        """Run the process, restarting it after failures, until it is done or stopped.

        Raises `Death` after `patience` consecutive failures.
        """
        if self.may_start is not None:
            await self.may_start.wait()
        while not (self._stopping or self.finished):
            # A run that lasted ends this loop of attempts, so that failures count from one again.
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(Death),
                stop=stop_after_attempt(self.spec.patience),
                wait=wait_exponential(multiplier=self.spec.first_wait, max=self.spec.longest_wait),
                before_sleep=self._announce,
                reraise=True,
            ):
                with attempt:
                    await self._run()

    async def _run(self) -> None:
        if self._stopping:
            return
        started = time.monotonic()
        code = await self._run_process()
        if self._stopping:
            return
        if code == 0 and not self.spec.forever:
            self.finished = True
            return
        self.restarts += 1
        lasted = time.monotonic() - started
        status = f"{_describe(code)} after {lasted:.0f} s"
        if lasted < self.spec.lasting:
            raise Death(self.spec.name, status, self._last_lines())
        self.say(self.spec.name, f"{status}; restarting")

    async def _run_process(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Write directly to the file: a pipe could fill up, and would break if the supervisor dies.
        with self.log_file.open("ab") as output:
            self._start = self._seen = output.tell()
            # A separate session: Ctrl-C only reaches the supervisor, which stops all processes in order.
            self.process = await asyncio.create_subprocess_exec(
                *self.spec.command,
                env=self.spec.environment | {PARENT_VARIABLE: str(os.getpid())},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        watcher = asyncio.create_task(self._watch_output())
        try:
            return await self.process.wait()
        finally:
            # Kill descendants of the dead process, which must not run beside its successor.
            self._signal(signal.SIGKILL)
            watcher.cancel()
            self._report_new_lines()

    async def _watch_output(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            self._report_new_lines()

    def _report_new_lines(self) -> None:
        """Show the important output lines since the last call, and set the events of awaited texts."""
        with self.log_file.open("rb") as file:
            file.seek(self._seen)
            new = file.read()
        complete = new[: new.rfind(b"\n") + 1]
        self._seen += len(complete)
        for line in complete.decode(errors="replace").splitlines():
            for text, event in self._awaited.items():
                if text in line:
                    event.set()
            if _IMPORTANT.search(line) and not self._stopping:
                self.say(self.spec.name, line.rstrip())

    def _last_lines(self) -> list[str]:
        with self.log_file.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._start, end - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]

    def _announce(self, state: RetryCallState) -> None:
        death = state.outcome.exception() if state.outcome else None
        wait = state.next_action.sleep if state.next_action else 0.0
        if isinstance(death, Death):
            self.say(self.spec.name, f"{death.status}; restarting in {wait:.1f} s")

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def begin_stop(self) -> None:
        """Mark the process as stopping, so that its exit is not a failure."""
        self._stopping = True

    async def stop(self, grace: float) -> None:
        """Send SIGTERM, and kill the process group if the process is still running after `grace` seconds."""
        self.begin_stop()
        if self.process is None or self.process.returncode is not None:
            return
        # Only the leader gets the signal: it stops its descendants in its own order.
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), grace)
        except TimeoutError:
            self.say(self.spec.name, f"did not stop within {grace:.0f} s; killed")
            self.kill()
            await self.process.wait()

    def kill(self) -> None:
        """Kill the process and its group."""
        self.begin_stop()
        if self.process is not None and self.process.returncode is None:
            self._signal(signal.SIGKILL)


def _describe(code: int) -> str:
    if code >= 0:
        return f"exited with status {code}"
    return f"was killed by {signal.Signals(-code).name}"


class GaveUpError(UserError):
    """A process died repeatedly; the message has its name, its log file and its last lines."""

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
    """Runs several child processes and keeps them alive while other work is done.

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
        """Return whether the child `name`, which need not run forever, has exited with status 0."""
        return any(child.finished for child in self.children if child.spec.name == name)

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run the children until `work` is done, a signal arrives, or a child keeps dying.

        All children have ended when this method returns or raises. Raises `GaveUpError`, and the errors of `work`.
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
        """Wait until the work or the wait for a signal (`tasks`) ends, or a child's task (`keepers`) fails.

        Raises the error of the task that ended.
        """
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
