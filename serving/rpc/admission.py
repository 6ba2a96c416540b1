"""Which of the calls that arrive are served: those that can be answered before their deadline.

What a server cannot answer in time costs it as much as what it can, so a server that begins every call answers none
in time once more arrive than it can do: each waits behind others that will be late. So a call is refused before its
message is read, if the calls under way would take more than half of the time that is left for it. How long they take
is known from those before: a call that found n others under way and was answered after s seconds took s / (n + 1),
and the median of that is followed. It holds whatever the bottleneck is, and whatever the machine does besides.

The other half is for what comes before and after: the way here, batches that are larger than usual, the way back.

To refuse a call costs Python as much as an empty call. What no handler takes, gRPC queues and, beyond `queue_calls`,
cancels for less than half of that. So after a refusal the event loop takes nothing for some milliseconds, in which the
thread that searches has enough to do.
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
"""Methods whose calls may be refused: those that wait for the search."""

_SHARE: Final = 0.5
"""Of the time that is left for a call, what the calls before it may take."""

_STEP: Final = 1.05
"""Factor by which a call that took longer, or less long, than expected changes what is expected."""

_PAUSE: Final = 0.005
"""Seconds that nothing is taken after a refusal, at most: other methods wait as long."""

_PAUSE_SHARE: Final = 1 / 8
"""Of the time that the calls under way will take, what a pause may be: who is in a hurry must not hold up a server that
has little to do."""

_FIRST: Final = 1e-5
"""Seconds that a call is expected to take before any was answered: nothing is refused for them."""

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["RetrievalService"].full_name
_PATHS: Final = {f"/{_SERVICE}/{method}" for method in ADMITTED}


class Entry(NamedTuple):
    """The calls that one found under way, and when it began."""

    ahead: int
    began: float


class Admission:
    """Counts the calls under way, and learns how long each takes; used by the event loop alone.

    Parameters
    ----------
    limit
        Calls under way at most, whatever their deadlines.
    retry_after
        How long refused clients should wait, in seconds.
    """

    def __init__(self, limit: int, retry_after: float) -> None:
        self._limit, self.refusal = limit, NoTimeLeftError(retry_after)
        self.under_way, self.pace = 0, _FIRST

    def has_time(self, left: float | None) -> bool:
        """Say whether to begin a call for which so many seconds are left; None: it has no deadline."""
        if self.under_way >= self._limit:
            return False
        return left is None or not self.under_way or self.under_way * self.pace <= _SHARE * left

    def require_time(self, left: float | None) -> None:
        """Raise `NoTimeLeftError` where a call must not be started."""
        if not self.has_time(left):
            raise self.refusal

    @property
    def pause(self) -> float:
        """Seconds in which to take nothing once a call was refused."""
        return min(_PAUSE, _PAUSE_SHARE * self.under_way * self.pace)

    def enter(self) -> Entry:
        """Begin a call."""
        entry = Entry(self.under_way, time.monotonic())
        self.under_way += 1
        return entry

    def leave(self, entry: Entry, *, waited: bool) -> None:
        """End a call; `waited`: it was answered, or its deadline passed while it waited."""
        self.under_way -= 1
        if waited:
            took = (time.monotonic() - entry.began) / (entry.ahead + 1)
            self.pace = max(_FIRST, self.pace * (_STEP if took > self.pace else 1 / _STEP))


class AdmissionInterceptor(WrappingInterceptor):
    """Refuses calls before their message is read.

    gRPC reads the message of a unary call before it calls the handler, but leaves that to the handler of a stream: so
    the methods in question are served as if their requests were streams, of which one message is read. On the wire
    there is no difference. It comes before all other interceptors: to know who calls costs more than to refuse. Its
    handlers take requests as bytes, which `weir.serving.rpc.decoding` decodes.
    """

    def __init__(self, admission: Admission, requests: RequestMetrics, calls: RpcMetrics) -> None:
        super().__init__()
        error = admission.refusal
        self._admission, self._refused, self._calls = admission, requests.refused.labels(error.reason), calls
        self._status = code_of(error), str(error), ((DETAILS_KEY, details_of(error)),)
        self._will_pause = False

    def wrapped(self, handler: Any, path: str) -> Any:
        """Put the check before the methods that wait for the search."""
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
        """Take nothing for a moment, after what the event loop has to do already."""
        if not self._will_pause:
            self._will_pause = True
            asyncio.get_running_loop().call_soon(self._pause)

    def _pause(self) -> None:
        self._will_pause = False
        time.sleep(self._admission.pause)
