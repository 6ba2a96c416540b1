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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final


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


@dataclass
class Row:
    """The faults of one kind, and what became of them; `seconds` is wall time."""

    faults: int = 0
    refused: int = 0
    without_effect: int = 0
    silent: list[str] = field(default_factory=list)
    seconds: float = 0.0


ROWS: dict[str, Row] = {}

NOTES: list[str] = []
"""What else a campaign has to tell, printed below the table."""


@contextmanager
def counting(kind: str) -> Iterator[Row]:
    """Count faults of one kind, and their time."""
    row, started = ROWS.setdefault(kind, Row()), time.perf_counter()
    try:
        yield row
    finally:
        row.seconds += time.perf_counter() - started


def packed() -> dict[str, Any]:
    """Return rows and notes as plain values, which can be sent to another process."""
    return {"rows": {kind: asdict(row) for kind, row in ROWS.items()}, "notes": NOTES}


def add(found: dict[str, Any]) -> None:
    """Add what another process has packed."""
    for kind, values in found.get("rows", {}).items():
        row, other = ROWS.setdefault(kind, Row()), Row(**values)
        for name in values:
            setattr(row, name, getattr(row, name) + getattr(other, name))
    NOTES.extend(found.get("notes", []))


def table() -> list[str]:
    """Return the lines of the summary."""
    head = ("kind", "faults", "refused", "without effect", "silent", "seconds")
    rows = [
        (kind, str(row.faults), str(row.refused), str(row.without_effect), str(len(row.silent)), f"{row.seconds:.0f}")
        for kind, row in ROWS.items()
    ]
    columns = list(zip(*[head, *rows], strict=True))
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(cell.ljust(width) if place == 0 else cell.rjust(width)
                  for place, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in [head, *rows]
    ]  # fmt: skip


IS_LONG: Final = os.environ.get("WEIR_CAMPAIGN") == "long"


def size_of(short: int, long: int) -> int:
    """Return `long` in the long form of the campaign (WEIR_CAMPAIGN=long), else `short`."""
    return long if IS_LONG else short
