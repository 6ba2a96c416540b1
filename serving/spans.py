"""What the core knows of traces: whether the call that it answers is traced, and whom to tell of a batch.

It needs no tracing library; `weir.serving.tracing` has the spans.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol, Self

__all__ = ["BatchTimes", "CallTrace", "call_trace", "exemplar"]


@dataclass(frozen=True)
class BatchTimes:
    """A batch of so many queries, and when it started, had its vectors, and had its items (monotonic seconds)."""

    bundle_version: str
    queries: int
    started: float
    embedded: float
    found: float


class CallTrace(Protocol):
    """A call whose trace is kept."""

    trace_id: str

    def queued(self) -> None:
        """Note that the call waits for its batch from now on."""

    def answered_with(self, calls: Sequence[Self], times: BatchTimes) -> None:
        """Record a batch that answered this and other calls, once for all of them; from any thread."""


call_trace: Final[ContextVar[CallTrace | None]] = ContextVar("call_trace", default=None)
"""Of the call that this task answers; None where its trace is not kept."""


def exemplar() -> dict[str, str] | None:
    """Return what leads from a measured value to the trace of the call, None where there is none."""
    trace = call_trace.get()
    return None if trace is None else {"trace_id": trace.trace_id}
