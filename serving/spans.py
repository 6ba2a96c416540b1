"""Trace hooks of the serving core: the current call's trace, and the times of its batches.

No tracing library is needed here; `weir.serving.tracing` creates the spans.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol, Self

__all__ = ["BatchTimes", "CallTrace", "call_trace", "exemplar"]


@dataclass(frozen=True)
class BatchTimes:
    """A batch's bundle, number of queries, and when it started, had vectors, and had items (monotonic seconds)."""

    bundle_version: str
    queries: int
    started: float
    embedded: float
    found: float


class CallTrace(Protocol):
    """A call that is traced."""

    trace_id: str

    def queued(self) -> None:
        """Record that the call waits for its batch from now on."""

    def answered_with(self, calls: Sequence[Self], times: BatchTimes) -> None:
        """Record a batch that answered `calls`, this one among them; called once per batch, from any thread."""


call_trace: Final[ContextVar[CallTrace | None]] = ContextVar("call_trace", default=None)
"""Trace of the call that the current task answers; None if it is not traced."""


def exemplar() -> dict[str, str] | None:
    """Return the exemplar labels that link a metric sample to the current trace; None if there is none."""
    trace = call_trace.get()
    return None if trace is None else {"trace_id": trace.trace_id}
