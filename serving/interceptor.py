"""Counts every unary call for Prometheus, under the names of go-grpc-prometheus.

Streams (health Watch, reflection) live as long as their client likes and are left out.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio

from serving.metrics import RpcMetrics

__all__ = ["MetricsInterceptor"]

_ROUNDED: Final = 0.02
"""Share of a deadline that may be left here when it is over for the client: gRPC sends it rounded up, by 1 % at most."""

_GO_NAMES: Final = {grpc.StatusCode.OK: "OK", grpc.StatusCode.CANCELLED: "Canceled"}


def _go_name(code: grpc.StatusCode) -> str:
    return _GO_NAMES.get(code) or code.name.title().replace("_", "")


class MetricsInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handlers of unary calls; `under_way` is the number of calls in progress."""

    def __init__(self, metrics: RpcMetrics) -> None:
        self._metrics = metrics
        self.under_way = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler with a stop-watch around it."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        service, _, method = handler_call_details.method.removeprefix("/").partition("/")
        timed = self.timed(handler.unary_unary, ("unary", service, method))
        return grpc.unary_unary_rpc_method_handler(
            timed,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def timed(self, inner: Callable[[Any, Any], Awaitable[Any]], labels: tuple[str, str, str]) -> Any:
        """Return a handler that counts its calls; `labels` are the kind of call, service and method."""

        async def handle(request: Any, context: Any) -> Any:
            self._metrics.started.labels(*labels).inc()
            self.under_way += 1
            start, code, allowed = time.perf_counter(), grpc.StatusCode.OK, context.time_remaining()
            try:
                return await inner(request, context)
            except asyncio.CancelledError:
                left = context.time_remaining()
                late = allowed is not None and left is not None and left <= _ROUNDED * allowed
                code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
                raise
            except BaseException:
                code = _code_of(context)
                raise
            finally:
                self.under_way -= 1
                self._metrics.handled.labels(*labels, _go_name(code)).inc()
                self._metrics.seconds.labels(*labels).observe(time.perf_counter() - start)

        return handle


def _code_of(context: Any) -> grpc.StatusCode:
    """Return the code that a failed handler aborted with; UNKNOWN is what gRPC makes of any other exception."""
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return next((known for known in grpc.StatusCode if known.value[0] == code and code), grpc.StatusCode.UNKNOWN)
