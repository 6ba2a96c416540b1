"""Merge the metrics of the Python server with the counts of its compiled front, each series once."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import grpc
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.interceptor import go_name, labels_of
from weir.serving.metrics import SECONDS
from weir.serving.processes.merged import merged

__all__ = ["shown_together"]

_LABELS: Final = ("grpc_type", "grpc_service", "grpc_method")
_SERVICE: Final = pb.DESCRIPTOR.services_by_name["RetrievalService"].full_name
_METHOD: Final = labels_of(f"/{_SERVICE}/Retrieve")
_STAGES: Final = ("total", "queue", "tower", "search")
_BOUNDS: Final = [*map(floatToGoString, SECONDS), "+Inf"]
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


def shown_together(own: CollectorRegistry, counts: Callable[[], dict[str, Any]]) -> CollectorRegistry:
    """Return a registry with the metrics of `own` and the `counts` of `NativeFront`, added up."""
    together = CollectorRegistry()
    together.register(_Together(own, counts))
    return together


@dataclass(eq=False)
class _Together(Collector):
    own: CollectorRegistry
    counts: Callable[[], dict[str, Any]]

    def collect(self) -> Iterator[Metric]:
        counts = self.counts()
        yield from merged([self.own.collect(), _families(counts) if counts else []])


def _families(counts: dict[str, Any]) -> Iterator[Metric]:
    plain = CounterMetricFamily("weir_plain_calls", "Calls that the compiled front answered, without Python's server.")
    plain.add_metric((), counts["started"])
    yield plain
    yield _counter("grpc_server_started", _LABELS, {_METHOD: counts["started"]})
    handled = {(*_METHOD, go_name(_CODES[code])): count for code, count in counts["handled"].items()}
    yield _counter("grpc_server_handled", (*_LABELS, "grpc_code"), handled)
    yield _histogram("grpc_server_handling_seconds", _LABELS, {_METHOD: counts["seconds"]})
    stages = {(stage,): seconds for stage, seconds in zip(_STAGES, counts["stages"], strict=True)}
    yield _histogram("weir_request_stage_seconds", ("stage",), stages)
    for name, found in (("weir_requests_refused", counts["refused"]), ("weir_requests_dropped", counts["dropped"])):
        yield _counter(name, ("reason",), {(reason,): count for reason, count in found.items()})
    waiting = GaugeMetricFamily("weir_queue_queries", "")
    waiting.add_metric((), counts["depth"])
    yield waiting


def _counter(name: str, labels: tuple[str, ...], series: Mapping[Any, int]) -> Metric:
    family = CounterMetricFamily(name, "", labels=labels)
    for values, count in series.items():
        family.add_metric(values, count)
    return family


def _histogram(name: str, labels: tuple[str, ...], series: Mapping[Any, tuple[list[int], float]]) -> Metric:
    family = HistogramMetricFamily(name, "", labels=labels)
    for values, (counts, total) in series.items():
        buckets = [(bound, float(count)) for bound, count in zip(_BOUNDS, accumulate(counts), strict=True)]
        family.add_metric(values, buckets, total)
    return family
