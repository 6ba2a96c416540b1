"""Metrics and the access log of each call, recorded by interceptors (traces: `weir.serving.rpc.tracing`).

Streams (health Watch, reflection) last as long as their client likes and are not counted.

A log line has a call's method, caller and outcome, but no content of the request: no user, no item, no token.
"""

import asyncio
import json
import sys
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from queue import Full, Queue
from threading import Thread
from types import TracebackType
from typing import IO, Any, Final, Self

import grpc
import grpc.aio
from grpc_health.v1 import health
from prometheus_client import Counter

from weir.serving.metrics import RpcMetrics, exemplar

__all__ = [
    "AccessLog",
    "AroundInterceptor",
    "CallTimer",
    "Handler",
    "HandlerWrapper",
    "MetricsInterceptor",
    "WrappingInterceptor",
    "go_name",
    "is_over",
    "labels_of",
    "names_of",
    "note",
    "unary",
]

Handler = Callable[[Any, Any], Awaitable[Any]]
"""Answers a call, given its request and its context."""

HandlerWrapper = Callable[[Handler, str, str], Handler]
"""Takes a handler, its service and its method; returns the wrapped handler."""

_ROUNDED: Final = 0.02
"""Share of a deadline that may be left here although the client's has passed, as gRPC rounds it up by 1 % at most."""

_REQUEST_ID: Final = "x-request-id"
"""Header that names a request; it is repeated in the log line."""

_WAITING: Final = 10_000
"""Most log lines that may wait to be written."""

_facts: ContextVar[dict[str, Any] | None] = ContextVar("facts", default=None)
"""Facts for the log line of the call that the current task answers; None without an access log."""


class WrappingInterceptor(grpc.aio.ServerInterceptor):
    """An interceptor that wraps each method's handler once, by `wrapped`, and caches the wrapped handler.

    The cached handler includes the handlers of the interceptors behind it, so an interceptor that decides per call must
    come before it.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's wrapped handler; None if the method does not exist."""
        path = handler_call_details.method
        handler = self._handlers.get(path)
        if handler is None and (found := await continuation(handler_call_details)) is not None:
            handler = self._handlers[path] = self.wrapped(found, path)
        return handler

    @abstractmethod
    def wrapped(self, handler: Any, path: str) -> Any:
        """Return the handler to use instead of `handler` for the method at `path`, ``/service/method``."""


class AroundInterceptor(WrappingInterceptor):
    """Wraps the handler of every unary method by `around`, for example to record a span for each call."""

    def __init__(self, around: HandlerWrapper) -> None:
        super().__init__()
        self._around = around

    def wrapped(self, handler: Any, path: str) -> Any:
        """Return a unary handler wrapped by `around`; return a stream handler unchanged."""
        if handler.unary_unary is None:
            return handler
        return unary(handler, self._around(handler.unary_unary, *names_of(path)))


def unary(handler: Any, inner: Handler) -> Any:
    """Return a unary handler that calls `inner`, with the (de)serialisers of `handler`."""
    return grpc.unary_unary_rpc_method_handler(
        inner, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
    )


def names_of(path: str) -> tuple[str, str]:
    """Return the names of service and method in a path ``/service/method``."""
    service, _, method = path.removeprefix("/").partition("/")
    return service, method


class CallTimer:
    """Context manager around the answer to a call: on exit, it has the call's gRPC `code` and its `seconds`.

    Exceptions propagate.
    """

    __slots__ = ("_allowed", "_context", "_start", "code", "seconds")

    def __init__(self, context: Any) -> None:
        self._context, self._allowed = context, context.time_remaining()
        self.code, self.seconds = grpc.StatusCode.OK, 0.0
        self._start = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._start
        if isinstance(error, asyncio.CancelledError):
            late = is_over(self._allowed, self._context.time_remaining())
            self.code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
        elif error is not None:
            self.code = _code_of(self._context)


def is_over(allowed: float | None, left: float | None) -> bool:
    """Return whether the client's deadline has passed, if `left` of its `allowed` seconds remain; None: no deadline."""
    return allowed is not None and left is not None and left <= _ROUNDED * allowed


def _code_of(context: Any) -> grpc.StatusCode:
    """Return the code that a failed handler aborted with; UNKNOWN, as gRPC answers, if it raised another exception."""
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return next((known for known in grpc.StatusCode if known.value[0] == code and code), grpc.StatusCode.UNKNOWN)


_GO_NAMES: Final = {grpc.StatusCode.OK: "OK", grpc.StatusCode.CANCELLED: "Canceled"}


def go_name(code: grpc.StatusCode) -> str:
    """Return the name of a code in Go's spelling, such as ``DeadlineExceeded``."""
    return _GO_NAMES.get(code) or code.name.title().replace("_", "")


class MetricsInterceptor(WrappingInterceptor):
    """Counts and times unary calls; `under_way` is the number of calls in progress."""

    def __init__(self, metrics: RpcMetrics) -> None:
        super().__init__()
        self._metrics = metrics
        self.under_way = 0

    def wrapped(self, handler: Any, path: str) -> Any:
        """Return a unary handler that counts and times its calls; return a stream handler unchanged."""
        if handler.unary_unary is None:
            return handler
        return unary(handler, self.timed(handler.unary_unary, labels_of(path)))

    def timed(self, inner: Callable[[Any, Any], Awaitable[Any]], labels: tuple[str, str, str]) -> Any:
        """Return a handler that times and counts its calls; `labels` are the kind of call, service and method."""
        started, seconds = self._metrics.started.labels(*labels), self._metrics.seconds.labels(*labels)
        handled = _Handled(self._metrics, labels)

        async def handle(request: Any, context: Any) -> Any:
            started.inc()
            self.under_way += 1
            ending = CallTimer(context)
            try:
                with ending:
                    return await inner(request, context)
            finally:
                self.under_way -= 1
                handled[ending.code].inc()
                seconds.observe(ending.seconds, exemplar())

        return handle


class _Handled(dict[grpc.StatusCode, Counter]):
    """The counters of a method's finished calls by code, cached: a look-up by labels costs more than an increment."""

    def __init__(self, metrics: RpcMetrics, labels: tuple[str, str, str]) -> None:
        self._metrics, self._labels = metrics, labels

    def __missing__(self, code: grpc.StatusCode) -> Counter:
        self[code] = counter = self._metrics.handled.labels(*self._labels, go_name(code))
        return counter


def labels_of(path: str) -> tuple[str, str, str]:
    """Return the metric labels of a unary method with the path ``/service/method``."""
    return "unary", *names_of(path)


def note(**facts: Any) -> None:
    """Add facts to the log line of the call that the current task answers; without an access log, do nothing."""
    if (found := _facts.get()) is not None:
        found.update(facts)


class AccessLog:
    """Writes a line of JSON for each call, in a background thread.

    Lines that `out` (standard output by default) does not take in time are dropped and counted as `dropped`.
    """

    def __init__(self, dropped: Counter, out: IO[bytes] | None = None) -> None:
        self._dropped, self._out = dropped, out or sys.stdout.buffer
        self._queue: Queue[dict[str, Any] | None] = Queue(_WAITING)
        # A daemon thread: a reader of standard output that has stopped must not keep the server from ending.
        self._thread = Thread(target=self._write, name="access-log", daemon=True)
        self._thread.start()

    def logged(self, inner: Handler, service: str, method: str) -> Handler:
        """Return a handler that logs each call of `inner`; health checks, which are frequent, are not logged."""
        if service == health.SERVICE_NAME:
            return inner

        async def handle(request: Any, context: Any) -> Any:
            facts: dict[str, Any] = {"time": _now(), "method": f"{service}/{method}"}
            if request_id := dict(context.invocation_metadata() or ()).get(_REQUEST_ID):
                facts["request_id"] = request_id
            before, ending = _facts.set(facts), CallTimer(context)
            try:
                with ending:
                    return await inner(request, context)
            finally:
                _facts.reset(before)
                end = {"code": go_name(ending.code), "ms": round(1000 * ending.seconds, 3)}
                self._put(facts | end | (exemplar() or {}))

        return handle

    def close(self, seconds: float = 2.0) -> None:
        """Write the waiting lines, for `seconds` at most, and end."""
        try:
            self._queue.put(None, timeout=seconds)
        except Full:
            return
        self._thread.join(seconds)

    def _put(self, line: dict[str, Any]) -> None:
        try:
            self._queue.put_nowait(line)
        except Full:
            self._dropped.inc()

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                # Headers may hold invalid Unicode; escaped, any text is JSON.
                self._out.write(json.dumps(line, default=str).encode() + b"\n")
                if self._queue.empty():
                    self._out.flush()
            except OSError:
                # The reader of standard output has closed it; another one may open it.
                self._dropped.inc()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
