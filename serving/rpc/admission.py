"""Admission: refuse calls that cannot be answered before their deadline.

A late answer costs as much as a timely one, so an overloaded server that begins every call answers none in time. A call
is therefore refused before its message is read, if the calls in progress would take more than half of its remaining
time; the other half is for the network and for batches that are larger than usual.

The time per call is learned: a call that found n others in progress and was answered after s seconds took s / (n + 1),
and `Admission` follows the median of these values. It holds whatever the bottleneck is, and whatever else the machine
does.

A refusal costs Python as much as an empty call. Calls that no handler takes are queued by gRPC and, beyond
`queue_calls`, cancelled at less than half of that cost. So after a refusal the event loop takes no calls for some
milliseconds, in which the search thread still has enough to do.

Other refusals are elsewhere: of callers and rates in `weir.serving.access`, of too many connections, streams and unread
calls in `weir.serving.listeners`, of too large requests in `weir.serving.rpc.decoding`, of invalid or too expensive
requests in `weir.serving.rpc.requests`, and of a full queue in `weir.serving.batching.queue`.
"""

import asyncio
import time
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.errors import NoTimeLeftError
from weir.serving.metrics import RequestMetrics, RpcMetrics
from weir.serving.rpc.instrumentation import WrappingInterceptor, go_name, labels_of
from weir.serving.rpc.status import DETAILS_KEY, code_of, details_of

__all__ = ["ADMITTED", "Admission", "AdmissionInterceptor", "Entry"]

ADMITTED: Final = frozenset({"Retrieve", "Embed"})
"""Methods whose calls may be refused, because they wait for a search."""

_SHARE: Final = 0.5
"""Share of a call's remaining time that the calls before it may take."""

_STEP: Final = 1.05
"""Factor by which each answered call raises or lowers the expected time per call."""

_PAUSE: Final = 0.005
"""Longest pause after a refusal, in seconds; other methods wait as long."""

_PAUSE_SHARE: Final = 1 / 8
"""Largest pause as a share of the time that the calls in progress will take.

Calls with short deadlines must not hold up a server that has little to do.
"""

_FIRST: Final = 1e-5
"""Expected seconds per call before any was answered: so low that no call is refused."""

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["RetrievalService"].full_name
_PATHS: Final = {f"/{_SERVICE}/{method}" for method in ADMITTED}


class Entry(NamedTuple):
    """A call in progress: the number of calls `ahead` when it began, and the time (monotonic seconds)."""

    ahead: int
    began: float


class Admission:
    """Decides whether to begin a call, from the calls in progress and the learned time per call.

    Used by the event loop alone.

    Parameters
    ----------
    limit
        Most calls in progress, whatever their deadlines.
    retry_after
        Seconds that refused clients should wait.
    """

    def __init__(self, limit: int, retry_after: float) -> None:
        self._limit, self.refusal = limit, NoTimeLeftError(retry_after)
        self.under_way, self.pace = 0, _FIRST

    def has_time(self, left: float | None) -> bool:
        """Return whether to begin a call that has `left` seconds until its deadline; None: no deadline."""
        if self.under_way >= self._limit:
            return False
        return left is None or not self.under_way or self.under_way * self.pace <= _SHARE * left

    def require_time(self, left: float | None) -> None:
        """Raise `NoTimeLeftError` unless `has_time(left)`."""
        if not self.has_time(left):
            raise self.refusal

    @property
    def pause(self) -> float:
        """Seconds after a refusal in which the event loop takes no calls."""
        return min(_PAUSE, _PAUSE_SHARE * self.under_way * self.pace)

    def enter(self) -> Entry:
        """Count a call that begins; pass the returned entry to `leave`."""
        entry = Entry(self.under_way, time.monotonic())
        self.under_way += 1
        return entry

    def leave(self, entry: Entry, *, waited: bool) -> None:
        """Count the end of a call; learn its time if it `waited` until it was answered or its deadline passed."""
        self.under_way -= 1
        if waited:
            took = (time.monotonic() - entry.began) / (entry.ahead + 1)
            self.pace = max(_FIRST, self.pace * (_STEP if took > self.pace else 1 / _STEP))


class AdmissionInterceptor(WrappingInterceptor):
    """Refuses calls that would miss their deadline, before their message is read.

    gRPC reads the message of a unary call before it calls the handler, but lets the handler of a stream read. So the
    methods in `ADMITTED` are served as streams of one message, which are the same on the wire. This interceptor comes
    before all others, because authentication costs more than a refusal. Its handlers take requests as bytes, which
    `weir.serving.rpc.decoding` decodes.
    """

    def __init__(self, admission: Admission, requests: RequestMetrics, calls: RpcMetrics) -> None:
        super().__init__()
        error = admission.refusal
        self._admission, self._refused, self._calls = admission, requests.refused.labels(error.reason), calls
        self._status = code_of(error), str(error), ((DETAILS_KEY, details_of(error)),)
        self._will_pause = False

    def wrapped(self, handler: Any, path: str) -> Any:
        """Return a handler that may refuse calls of a method in `ADMITTED`; other methods keep their handler."""
        return self._checked(handler, path) if path in _PATHS else handler

    def _checked(self, handler: Any, path: str) -> Any:
        inner, labels = handler.unary_unary, labels_of(path)
        started, seconds = self._calls.started.labels(*labels), self._calls.seconds.labels(*labels)
        handled = self._calls.handled.labels(*labels, go_name(self._status[0]))

        async def handle(_: Any, context: Any) -> Any:
            if not self._admission.has_time(context.time_remaining()):
                started.inc()
                self._refused.inc()
                handled.inc()
                seconds.observe(0.0)
                self._pause_soon()
                await context.abort(*self._status)
            data = await context.read()
            if data is grpc.aio.EOF:
                await context.abort(grpc.StatusCode.CANCELLED, "the call ended without a message")
            return await inner(data, context)

        return grpc.stream_unary_rpc_method_handler(handle, response_serializer=handler.response_serializer)

    def _pause_soon(self) -> None:
        """Block the event loop for a pause, once it has done its pending work."""
        if not self._will_pause:
            self._will_pause = True
            asyncio.get_running_loop().call_soon(self._pause)

    def _pause(self) -> None:
        self._will_pause = False
        time.sleep(self._admission.pause)
