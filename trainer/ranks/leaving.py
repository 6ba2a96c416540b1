"""Nodes that leave a run, and what becomes of the others."""

import time
from typing import ClassVar, Final, Protocol

from weir.contracts import UserError
from weir.trainer.ranks.workers import Workers

__all__ = ["NodeLeftError", "Stop", "is_left_to_others", "require_asked"]

_TOGETHER_SECONDS: Final = 1.0
"""Who stops a run asks its nodes one after the other, within so long."""


class Stop(Protocol):
    """Says whether this process is asked to stop."""

    @property
    def requested(self) -> bool:
        """Whether it is."""


class NodeLeftError(UserError):
    """Another node was asked to stop, and this one was not: its launcher has to start it again, among those left."""

    exit_status: ClassVar[int] = 75


def is_left_to_others(stop: Stop, workers: Workers) -> bool:
    """Say whether the run goes on without some nodes: they were asked to stop, and that of rank 0 was not.

    All ranks must call it.
    """
    if not workers.has_nodes or not workers.any(stop.requested):
        return False
    ends = time.monotonic() + _TOGETHER_SECONDS
    while workers.is_first and not stop.requested and time.monotonic() < ends:
        time.sleep(0.01)
    return not workers.broadcast(stop.requested)


def require_asked(stop: Stop, workers: Workers) -> None:
    """Raise `NodeLeftError` on a rank that was not asked to stop, where another node's was; all ranks must call it."""
    if workers.has_nodes and workers.any(stop.requested) and not stop.requested:
        raise NodeLeftError("another node was asked to stop: this rank starts again without it")
