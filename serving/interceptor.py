"""Count every unary call for Prometheus, with the metric names of go-grpc-prometheus.

Streams (health Watch, reflection) last as long as their client likes and are not counted.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
from prometheus_client import Counter

from weir.serving.ending import Ending
from weir.serving.metrics import RpcMetrics
from weir.serving.spans import exemplar
from weir.serving.wrapping import WrappingInterceptor, names_of, unary

__all__ = ["MetricsInterceptor", "go_name", "labels_of"]

_GO_NAMES: Final = {grpc.StatusCode.OK: "OK", grpc.StatusCode.CANCELLED: "Canceled"}


def go_name(code: grpc.StatusCode) -> str:
    """Return the name of a code in Go's spelling."""
    return _GO_NAMES.get(code) or code.name.title().replace("_", "")


class MetricsInterceptor(WrappingInterceptor):
    """Counts and times unary calls; `under_way` is the number of calls in progress."""

    def __init__(self, metrics: RpcMetrics) -> None:
        super().__init__()
        self._metrics = metrics
        self.under_way = 0

    def wrapped(self, handler: Any, path: str) -> Any:
        """Time and count the calls of unary methods."""
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
            ending = Ending(context)
            try:
                with ending:
                    return await inner(request, context)
            finally:
                self.under_way -= 1
                handled[ending.code].inc()
                seconds.observe(ending.seconds, exemplar())

        return handle


class _Handled(dict[grpc.StatusCode, Counter]):
    """The counters of a method's codes, cached: looking one up by its labels costs more than an increment."""

    def __init__(self, metrics: RpcMetrics, labels: tuple[str, str, str]) -> None:
        self._metrics, self._labels = metrics, labels

    def __missing__(self, code: grpc.StatusCode) -> Counter:
        self[code] = counter = self._metrics.handled.labels(*self._labels, go_name(code))
        return counter


def labels_of(path: str) -> tuple[str, str, str]:
    """Return the metric labels of a unary method with the path ``/service/method``."""
    return "unary", *names_of(path)
