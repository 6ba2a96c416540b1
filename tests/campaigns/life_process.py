"""The commands of a store's life: forks of one process that has imported what they need."""

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import weir.pipelines.batch.ingest
import weir.trainer.train
from tests.campaigns.hunter import finish, fork
from tests.campaigns.life_log import first_end
from weir.cli.main import main as weir
from weir.contracts import BundleLog, Store

WHOLE: Final = 120.0
"""Seconds after which a command is killed that ought to have ended."""


@dataclass
class Command:
    """A command that runs, and the file of what it says."""

    arguments: list[str]
    process: int
    out: Path

    @classmethod
    def started(cls, folder: Path, number: int, arguments: list[str]) -> "Command":
        """Start a command with the settings of a life."""
        out = folder / f"said-{number}.txt"
        out.touch()
        return cls(arguments, fork(partial(_run, [*arguments, "--config", str(folder / "weir.yaml")], out)), out)

    def ended(self, longest: float = 0.0, stop: signal.Signals = signal.SIGKILL) -> dict[str, Any]:
        """Wait for its end, stop it after the longest time, and say how it ended: status None if it was killed."""
        status = _ended(self.process, longest, stop)
        if status is None and (longest == WHOLE or stop != signal.SIGKILL):
            status = -signal.SIGKILL
        return {"command": self.arguments, "status": status, "said": self.out.read_text()}


class Seen(NamedTuple):
    """What is in a store: whether there is one, its bundles, and the second at which its first window ends."""

    is_there: bool
    versions: list[str]
    first_end: float


def seen(folder: Path, url: str) -> Seen:
    """Look into a store, in a fork: forks of a process with a client of an object store would hang."""
    out = folder / "seen.json"
    finish(partial(_look, url, out))
    return Seen(*json.loads(out.read_text()))


def _look(url: str, out: Path) -> None:
    store = Store(url)
    versions = [manifest.version for manifest in BundleLog(store).manifests() if manifest.variant == "main"]
    out.write_text(json.dumps([store.exists("STORE.json"), versions, first_end(store)]))


def _run(arguments: list[str], out: Path) -> None:
    """Be a command, to its end; what it says goes to a file."""
    with out.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["weir", *arguments]
    try:
        weir()
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(end.code or 0))


def _ended(child: int, longest: float, stop: signal.Signals) -> int | None:
    ends = time.monotonic() + longest
    while time.monotonic() < ends:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    if stop == signal.SIGTERM:
        os.kill(child, stop)
        return _ended(child, WHOLE, signal.SIGKILL)
    os.killpg(child, stop)
    _, status = os.waitpid(child, 0)
    return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
