"""Traces of calls, by OpenTelemetry (an extra), to a collector that speaks OTLP over gRPC.

Each call has a span, a child of the span in its `traceparent`, with two children: its wait in the queue and its batch.
A batch answers several calls, so it has a trace of its own, with tower and search as children; the batch links to every
call that it answers, and the batch span of each call links to the batch.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

import grpc
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from weir.contracts.storage.format import software_version
from weir.serving.config import TracingConfig
from weir.serving.metrics import BatchTimes, call_trace
from weir.serving.rpc.instrumentation import CallTimer, Handler

__all__ = ["Traces"]

_FAULTS: Final = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
"""Codes that mark a server's span as failed (OpenTelemetry's conventions); other codes are the caller's fault."""

_PROPAGATOR: Final = TraceContextTextMapPropagator()
_SEND_SECONDS: Final = 2.0
"""Timeout of an export to the collector; a stopping server waits for a few attempts at most."""


class Traces:
    """Records spans and sends them to a collector in the background; spans that it takes too late are dropped.

    The standard variables (``OTEL_EXPORTER_OTLP_HEADERS``, ``OTEL_RESOURCE_ATTRIBUTES`` and others) apply.
    """

    def __init__(self, config: TracingConfig) -> None:
        endpoint = str(config.endpoint)
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"), timeout=_SEND_SECONDS)
        self._processor = BatchSpanProcessor(exporter)
        self._resource = Resource.create({SERVICE_NAME: "weir-serving", SERVICE_VERSION: software_version()})
        self._calls = self._tracer(ParentBased(TraceIdRatioBased(config.ratio)))
        # Batches are only traced for calls that are sampled.
        self._batches = self._tracer(ALWAYS_ON)

    def _tracer(self, sampler: Sampler) -> Tracer:
        provider = TracerProvider(sampler, self._resource, shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        return provider.get_tracer("weir.serving")

    def close(self) -> None:
        """Send the waiting spans, which takes some seconds at most, and end."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def traced(self, inner: Handler, service: str, method: str) -> Handler:
        """Return a handler that records a span around each call of `inner`."""
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}

        async def handle(request: Any, context: Any) -> Any:
            parent = _PROPAGATOR.extract(dict(context.invocation_metadata() or ()), Context())
            span = self._calls.start_span(f"{service}/{method}", parent, SpanKind.SERVER, attributes)
            kept = _Call(span, self._batches) if span.is_recording() else None
            before, ending = call_trace.set(kept), CallTimer(context)
            try:
                with ending:
                    return await inner(request, context)
            finally:
                call_trace.reset(before)
                _end(span, ending.code)

        return handle


class _Call:
    """A `CallTrace` that records the spans of one call and, for the first call of a batch, of the batch."""

    def __init__(self, span: Span, batches: Tracer) -> None:
        self.span, self._batches = span, batches
        self.trace_id = f"{span.get_span_context().trace_id:032x}"
        self._waits_since: float | None = None

    def queued(self) -> None:
        self._waits_since = time.monotonic()

    def answered_with(self, calls: Sequence["_Call"], times: BatchTimes) -> None:
        links, clock = [Link(call.span.get_span_context()) for call in calls], _Clock()
        about: dict[str, str | int] = {
            "weir.bundle_version": times.bundle_version,
            "weir.batch.queries": times.queries,
            "weir.batch.traced_calls": len(calls),
        }
        started, embedded, found = (clock.ns(at) for at in (times.started, times.embedded, times.found))
        batch = self._batches.start_span("batch", Context(), links=links, attributes=about, start_time=started)
        inside = set_span_in_context(batch, Context())
        self._span("tower", inside, started, embedded)
        self._span("search", inside, embedded, found)
        batch.end(found)
        for call in calls:
            call._answered(batch.get_span_context(), times, clock)

    def _answered(self, batch: SpanContext, times: BatchTimes, clock: "_Clock") -> None:
        inside, started = set_span_in_context(self.span, Context()), clock.ns(times.started)
        if self._waits_since is not None:
            self._span("queue", inside, clock.ns(self._waits_since), started)
            self._waits_since = None  # a large request has several batches: only its wait for the first is recorded
        self._span("batch", inside, started, clock.ns(times.found), [Link(batch)])

    def _span(self, name: str, inside: Context, start: int, end: int, links: Sequence[Link] = ()) -> None:
        self._batches.start_span(name, inside, links=links, start_time=start).end(max(start, end))


class _Clock:
    """Converts times of the monotonic clock to nanoseconds since 1970.

    Both clocks are read once for all spans of a batch; with a reading per span, rounding errors could make a span end
    after the next span starts.
    """

    def __init__(self) -> None:
        self._since = time.time_ns() - time.monotonic_ns()

    def ns(self, monotonic: float) -> int:
        return self._since + round(1e9 * monotonic)


def _end(span: Span, code: grpc.StatusCode) -> None:
    span.set_attribute("rpc.grpc.status_code", int(code.value[0]))
    if code.name in _FAULTS:
        span.set_status(Status(StatusCode.ERROR, code.name))
    span.end()
