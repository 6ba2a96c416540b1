"""Coordination of ranks: nodes that leave a run, the time of each rank's steps, and tasks divided over ranks."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol

import torch

from weir.contracts import UserError
from weir.trainer.ranks.workers import Workers

__all__ = ["NodeLeftError", "Pace", "Stop", "done_by_all", "is_left_to_others", "require_asked"]

logger = logging.getLogger(__name__)


_TOGETHER_SECONDS: Final = 1.0
"""Seconds within which a stop of the whole run reaches all nodes."""


class Stop(Protocol):
    """A stop signal, usually a `threading.Event`."""

    def is_set(self) -> bool:
        """Return whether this process was asked to stop."""


class NodeLeftError(UserError):
    """Another node was asked to stop, and this node was not: its launcher must restart it with the remaining nodes."""

    exit_status: ClassVar[int] = 75


def is_left_to_others(stop: Stop, workers: Workers) -> bool:
    """Return whether the run continues without some nodes, because they were asked to stop and rank 0 was not.

    Collective.
    """
    if not workers.has_nodes or not workers.any(stop.is_set()):
        return False
    ends = time.monotonic() + _TOGETHER_SECONDS
    while workers.is_first and not stop.is_set() and time.monotonic() < ends:
        time.sleep(0.01)
    return not workers.broadcast(stop.is_set())


def require_asked(stop: Stop, workers: Workers) -> None:
    """Raise `NodeLeftError` on ranks that were not asked to stop if another node was; collective."""
    if workers.has_nodes and workers.any(stop.is_set()) and not stop.is_set():
        raise NodeLeftError("another node was asked to stop: this rank starts again without it")


@dataclass
class Pace:
    """Timer of this rank's steps, without the time spent waiting for other ranks."""

    workers: Workers
    _seconds: float = field(default=0.0, init=False)
    _steps: int = field(default=0, init=False)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Context manager that measures a step."""
        started, waited = time.monotonic(), self.workers.waited
        yield
        self._seconds += time.monotonic() - started - (self.workers.waited - waited)
        self._steps += 1

    def of_ranks(self) -> list[float]:
        """Return the mean seconds per step of each rank since the last call; collective."""
        mean = torch.tensor([self._seconds / max(1, self._steps)], dtype=torch.float64)
        self._seconds, self._steps = 0.0, 0
        return [float(each) for each in self.workers.gather(mean).flatten()]


def done_by_all(workers: Workers, work: Callable[[], int], expected: int) -> None:
    """Run this rank's part of a task, `work`, which returns the number of items done; wait for all ranks. Collective.

    Raises
    ------
    Exception
        On rank 0, the error of its own part; other ranks log their errors and continue.
    RuntimeError
        On rank 0, if all parts together did not do `expected` items.
    """
    done = 0
    try:
        done = work()
    except Exception:
        if workers.is_first:
            raise
        logger.exception("rank %d could not do its part of what rank 0 asked for", workers.rank)
    finally:
        total = int(workers.sum(torch.tensor(done)))
    if workers.is_first and total != expected:
        raise RuntimeError(f"ranks have done {total} items of {expected}: the log of a rank that failed says why")
