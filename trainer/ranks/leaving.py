"""Nodes that leave a run: a stop of some nodes ends their ranks, and restarts the others without them."""

import time
from typing import ClassVar, Final, Protocol

from weir.contracts import UserError
from weir.trainer.ranks.workers import Workers

__all__ = ["NodeLeftError", "Stop", "is_left_to_others", "require_asked"]

_TOGETHER_SECONDS: Final = 1.0
"""Seconds within which a stop of the whole run reaches all its nodes, one after another."""


class Stop(Protocol):
    """A stop signal."""

    @property
    def requested(self) -> bool:
        """Whether this process was asked to stop."""


class NodeLeftError(UserError):
    """Another node was asked to stop, this one was not: its launcher must restart it with the remaining nodes."""

    exit_status: ClassVar[int] = 75


def is_left_to_others(stop: Stop, workers: Workers) -> bool:
    """Return whether the run continues without some nodes: they were asked to stop, and rank 0's node was not.

    Collective.
    """
    if not workers.has_nodes or not workers.any(stop.requested):
        return False
    ends = time.monotonic() + _TOGETHER_SECONDS
    while workers.is_first and not stop.requested and time.monotonic() < ends:
        time.sleep(0.01)
    return not workers.broadcast(stop.requested)


def require_asked(stop: Stop, workers: Workers) -> None:
    """Raise `NodeLeftError` on ranks that were not asked to stop if another node was; collective."""
    if workers.has_nodes and workers.any(stop.requested) and not stop.requested:
        raise NodeLeftError("another node was asked to stop: this rank starts again without it")
