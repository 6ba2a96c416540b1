"""Start and stop processes that outlive the command that starts them.

Each service runs in the background with a mark in its environment, which its descendants inherit. What runs is asked
of the kernel by this mark: no PID file goes stale, no process is missed, none of others is ever signalled. Linux only.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tenacity import RetryError, Retrying, retry_if_not_result, stop_after_delay, wait_fixed

from deploy.engines.settings import HOST
from weir.contracts import UserError
from weir.runtime.listening import is_held

__all__ = ["EngineError", "Service", "is_listening", "start", "stop"]

_MARK = "ENGINES_SERVICE"
_TAIL_LINES = 12
_GRACE_SECONDS = 15
_RELEASE_SECONDS = 3
_LOOKS = 5


class EngineError(UserError):
    """An engine did not start; the message names its log file, or the port that another program holds."""


@dataclass(frozen=True)
class Service:
    """A process to run in the background.

    Parameters
    ----------
    name
        Short name, for messages and log files.
    command, environment
        What to run, and the variables beside those of this process.
    ports
        Port -> the setting that moves it.
    answers
        Whether the service can be used, asked of itself.
    prepare
        Called before each start.
    """

    name: str
    folder: Path
    command: Sequence[str]
    ports: dict[int, str]
    answers: Callable[[], bool]
    prepare: Callable[[], None] = lambda: None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        """File with the output of all starts."""
        return self.folder / f"{self.name}.log"

    def processes(self) -> list[int]:
        """Return the ids of its processes: the one that was started, then its descendants."""
        mark = f"{_MARK}={self._mark}".encode()
        found = [pid for pid in _all_processes() if mark in _environment(pid)]
        return sorted(found, key=lambda pid: (not _leads(pid), pid))

    def runs(self) -> bool:
        """Return whether it runs: not only descendants that have outlived it."""
        return any(map(_leads, self.processes()))

    @property
    def _mark(self) -> str:
        return str(self.log.resolve())

    def launch(self) -> None:
        """Start it; raises `EngineError` where a port is taken."""
        for port, setting in self.ports.items():
            if not _becomes_free(port):
                raise EngineError(
                    f"{self.name} cannot start: port {port} is in use by another program "
                    f"(`ss -ltnp` names it); {setting} takes another port"
                )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.prepare()
        with self.log.open("ab") as output:
            subprocess.Popen(
                self.command,
                env=os.environ | self.environment | {_MARK: self._mark},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        """Signal all of its processes."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def start(services: Sequence[Service], seconds: float) -> list[Service]:
    """Start what does not run and wait until all answer; returns what was started.

    Raises `EngineError` after stopping again what it has started.
    """
    started: list[Service] = []
    try:
        for service in services:
            if not service.runs():
                stop([service])
                service.launch()
                started.append(service)
        for service in services:
            _await_answers(service, seconds)
    except BaseException:
        stop(started)
        raise
    return started


def _await_answers(service: Service, seconds: float) -> None:
    """Wait until a service answers; raises `EngineError` if it ends or does not answer in time."""

    def is_up() -> bool:
        if _has_ended(service):
            raise EngineError(f"{service.name} has ended: {service.log} ends with\n{_tail(service.log)}")
        return service.answers()

    try:
        Retrying(retry=retry_if_not_result(bool), stop=stop_after_delay(seconds), wait=wait_fixed(0.2))(is_up)
    except RetryError:
        raise EngineError(
            f"{service.name} does not answer after {seconds:.0f} s: {service.log} ends with\n{_tail(service.log)}"
        ) from None


def stop(services: Sequence[Service], grace: float = _GRACE_SECONDS) -> list[Service]:
    """End all processes of these services, and kill those that are left after `grace` seconds.

    Returns the services that had any.
    """
    running = [service for service in reversed(services) if service.processes()]
    for service in running:
        service.signal(signal.SIGTERM)
    if not _are_gone(running, grace):
        for service in running:
            service.signal(signal.SIGKILL)
        if not _are_gone(running, _GRACE_SECONDS):
            left = {service.name: service.processes() for service in running}
            raise EngineError(f"these processes cannot be killed: {left}")
    return running


def is_listening(port: int) -> bool:
    """Return whether a server takes connections at the port."""
    with closing(socket.socket()) as probe:
        probe.settimeout(2)
        return probe.connect_ex((HOST, port)) == 0


def _are_gone(services: Sequence[Service], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while any(service.processes() for service in services):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _has_ended(service: Service) -> bool:
    """Return whether a service does not run; while a process loads another program, nobody sees its environment."""
    for _ in range(_LOOKS):
        if service.runs():
            return False
        time.sleep(0.1)
    return True


def _becomes_free(port: int) -> bool:
    """Return whether a server can take a port, now or soon: a killed process holds its own for a moment."""
    end = time.monotonic() + _RELEASE_SECONDS
    while is_held("an engine", HOST, port):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _leads(pid: int) -> bool:
    """Return whether a process was started by `Service.launch`, in a session of its own."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _all_processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _environment(pid: int) -> list[bytes]:
    """Return the variables that a process was started with: none of one that has ended, or is another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
