"""Counts every unary call for Prometheus, under the names of go-grpc-prometheus.

Streams (health Watch, reflection) live as long as their client likes and are left out.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
from prometheus_client import Counter

from serving.metrics import RpcMetrics
from serving.spans import exemplar
from serving.wrapping import WrappingInterceptor, names_of, unary

__all__ = ["MetricsInterceptor", "ended_with", "go_name", "is_over", "labels_of"]

_ROUNDED: Final = 0.02
"""Share of a deadline that may be left here when it is over for the client: gRPC rounds it up, by 1 % at most."""

_GO_NAMES: Final = {grpc.StatusCode.OK: "OK", grpc.StatusCode.CANCELLED: "Canceled"}


def go_name(code: grpc.StatusCode) -> str:
    """Spell a code as Go does."""
    return _GO_NAMES.get(code) or code.name.title().replace("_", "")


class MetricsInterceptor(WrappingInterceptor):
    """Wraps the handlers of unary calls; `under_way` is the number of calls in progress."""

    def __init__(self, metrics: RpcMetrics) -> None:
        super().__init__()
        self._metrics = metrics
        self.under_way = 0

    def wrapped(self, handler: Any, path: str) -> Any:
        """Put a stop-watch around unary methods."""
        if handler.unary_unary is None:
            return handler
        return unary(handler, self.timed(handler.unary_unary, labels_of(path)))

    def timed(self, inner: Callable[[Any, Any], Awaitable[Any]], labels: tuple[str, str, str]) -> Any:
        """Return a handler that counts its calls; `labels` are the kind of call, service and method."""
        started, seconds = self._metrics.started.labels(*labels), self._metrics.seconds.labels(*labels)
        handled = _Handled(self._metrics, labels)

        async def handle(request: Any, context: Any) -> Any:
            started.inc()
            self.under_way += 1
            start, code, allowed = time.perf_counter(), grpc.StatusCode.OK, context.time_remaining()
            try:
                return await inner(request, context)
            except asyncio.CancelledError:
                late = is_over(allowed, context.time_remaining())
                code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
                raise
            except BaseException:
                code = ended_with(context)
                raise
            finally:
                self.under_way -= 1
                handled[code].inc()
                seconds.observe(time.perf_counter() - start, exemplar())

        return handle


class _Handled(dict[grpc.StatusCode, Counter]):
    """The counters of a method's ends, made as they are needed: looking them up by label costs more than to count."""

    def __init__(self, metrics: RpcMetrics, labels: tuple[str, str, str]) -> None:
        self._metrics, self._labels = metrics, labels

    def __missing__(self, code: grpc.StatusCode) -> Counter:
        self[code] = counter = self._metrics.handled.labels(*self._labels, go_name(code))
        return counter


def is_over(allowed: float | None, left: float | None) -> bool:
    """Say whether the client's deadline is over: seconds `left` of those `allowed`, None where there is no deadline."""
    return allowed is not None and left is not None and left <= _ROUNDED * allowed


def labels_of(path: str) -> tuple[str, str, str]:
    """Return the labels of a unary method that gRPC names ``/service/method``."""
    return "unary", *names_of(path)


def ended_with(context: Any) -> grpc.StatusCode:
    """Return the code that a failed handler aborted with; UNKNOWN is what gRPC makes of any other exception."""
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return next((known for known in grpc.StatusCode if known.value[0] == code and code), grpc.StatusCode.UNKNOWN)
