"""A collector of traces: a real OTLP server over gRPC that keeps the spans."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans; `resources` are the attributes of those who sent them."""

    target: str = ""
    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        """Keep what came."""
        with self.changed:
            for each in request.resource_spans:
                self.resources.append({one.key: one.value.string_value for one in each.resource.attributes})
                self.spans.extend(span for scope in each.scope_spans for span in scope.spans)
            self.changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait_for(self, count: int, wanted: Callable[[Span], bool], within: float = 60) -> list[Span]:
        """Return the spans that are wanted, once there are so many."""
        ends = time.monotonic() + within
        with self.changed:
            while len(found := [span for span in self.spans if wanted(span)]) < count:
                assert self.changed.wait(max(0.0, ends - time.monotonic())), [span.name for span in self.spans]
        return found


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port."""
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.target = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None)


def attributes(span: Span) -> dict[str, Any]:
    """Return the attributes of a span as plain values."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
