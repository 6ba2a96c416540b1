"""The engine of the kill campaigns: a stage lives, is killed at a random moment, and lives again.

A hunter is a process of its own: it has imported a stage once and forks it for every life, so that a restart costs no
imports. It must not have run the stage itself, nor started a thread, because forks of such a process hang.
"""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable


def fork(live: Callable[[], object]) -> int:
    """Start a life in a process group of its own and return its process id."""
    if child := os.fork():
        # Both sides ask for it, so that it is there whoever comes first.
        os.setpgid(child, child)
        return child
    try:
        os.setpgid(0, 0)
        live()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a fork must never return into the hunter
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def kill(child: int) -> None:
    """Kill a life with all its processes; fails if it had ended by itself."""
    os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"a life ended by itself with status {status}"


def finish(live: Callable[[], object]) -> None:
    """Let a last life end by itself, and well."""
    _, status = os.waitpid(fork(live), 0)
    assert status == 0, f"the last life ended with status {status}"


def hunt(live: Callable[[], object], moments: Iterable[Callable[[], None]]) -> None:
    """Let one life after the other start, and kill it at its moment: when the function returns."""
    for wait in moments:
        child = fork(live)
        wait()
        kill(child)


def moment(rng: random.Random, longest: float, until: Callable[[], bool] = lambda: False) -> None:
    """Wait for a random time of at most so many seconds, or until something is true."""
    end = time.monotonic() + rng.uniform(0, longest)
    while time.monotonic() < end and not until():
        time.sleep(0.002)
