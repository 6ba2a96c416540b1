"""Scripts on several ranks: each is a process, forked off one that has loaded torch, as torchrun would for each.

Launchers have tests of their own, with real ones.
"""

import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest.mock import patch

from weir.trainer.ranks.workers import RENDEZVOUS

__all__ = ["lines_of_ranks", "run_on_ranks"]

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["weir.trainer.train"])


def run_on_ranks(ranks: int, script: Path, *arguments: str, seconds: float = 100) -> None:
    """Run a script on so many ranks of this machine; fail with what they have printed if one does, or takes too long.

    A script is run as if it were started by its path.
    """
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"{rank}.log") for rank in range(ranks)]
        with patch.dict(os.environ, OMP_NUM_THREADS="1"):
            forkserver.ensure_running()
        started: list[BaseProcess] = []
        for rank, log in enumerate(logs):
            placed = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            environment = {name: str(value) for name, value in placed.items()} | {RENDEZVOUS: f"{folder}/ranks"}
            started.append(_FORKS.Process(target=_run, args=(str(script), arguments, environment, str(log))))
            started[-1].start()
        _wait(started, seconds)
        codes = [process.exitcode for process in started]
        assert not any(codes), (codes, *(log.read_text() for log in logs if log.exists()))


def lines_of_ranks(ranks: int, script: Path, folder: Path) -> list[int]:
    """Run a script on so many ranks; return the number that each has written into a folder."""
    run_on_ranks(ranks, script, str(folder))
    return [int((folder / f"rank{rank}").read_text()) for rank in range(ranks)]


def _wait(processes: Sequence[BaseProcess], seconds: float) -> None:
    """Wait until all have ended well, or one has not; then end the others, as torchrun does."""
    end = time.monotonic() + seconds
    while all(process.exitcode in {None, 0} for process in processes):
        running = [process.sentinel for process in processes if process.exitcode is None]
        left = end - time.monotonic()
        if not running or not connection.wait(running, max(left, 0)):
            break
    for process in processes:
        process.kill()
        process.join()


def _run(script: str, arguments: tuple[str, ...], environment: dict[str, str], log: str) -> None:
    """Be a rank."""
    os.environ.update(environment)
    with Path(log).open("wb") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
