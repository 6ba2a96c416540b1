"""Answers batches of plain requests (`weir.serving.native`), and adds the compiled front's counts to the metrics."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, islice
from typing import Any, Final

import grpc
import numpy as np
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from weir.contracts import MAX_ID_BYTES, ItemKeys
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.errors import AnswerTooLargeError, InvalidRequestError, NoBundleError, RequestError, Violation
from weir.serving.metrics import SECONDS, RequestMetrics
from weir.serving.native.columns import I64, Found, Kind, PlainBatch, Wanted, queries_of
from weir.serving.native.plain import PlainRetriever
from weir.serving.processes.merged import merged
from weir.serving.rpc.instrumentation import go_name, labels_of
from weir.serving.rpc.requests import MAX_VIOLATIONS, wrong_length
from weir.serving.rpc.responses import TOKEN_BYTES
from weir.serving.rpc.status import code_of, details_of
from weir.serving.search.queries import Hits, Query, Task
from weir.serving.served_lists import ServedLists

__all__ = ["Answering", "shown_together", "spelled"]

log = logging.getLogger(__name__)

_LABELS: Final = ("grpc_type", "grpc_service", "grpc_method")
_SERVICE: Final = pb.DESCRIPTOR.services_by_name["RetrievalService"].full_name
_METHOD: Final = labels_of(f"/{_SERVICE}/Retrieve")
_STAGES: Final = ("total", "queue", "tower", "search")
_BOUNDS: Final = [*map(floatToGoString, SECONDS), "+Inf"]
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}

_OVERHEAD: Final = 8
"""Bytes of an item in an answer besides its id: the id's length, a score, and the cold flag."""

_PER_ID: Final = _OVERHEAD + MAX_ID_BYTES
_PER_QUERY: Final = 32
"""Bytes of a query's hits in an answer besides its items."""


def shown_together(own: CollectorRegistry, counts: Callable[[], dict[str, Any]]) -> CollectorRegistry:
    """Return a registry whose metrics are the sums of those in `own` and the counts of `NativeFront.counts`."""
    together = CollectorRegistry()
    together.register(_Together(own, counts))
    return together


@dataclass(eq=False)
class _Together(Collector):
    """Collects the metrics of a registry, with the compiled front's counts added."""

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


@dataclass(frozen=True)
class Answering:
    """Answers batches of plain requests in the search thread, from the first of the bundles that `loaded` returns.

    `served` keeps sampled answers, and answers have at most `max_bytes` bytes.
    """

    loaded: Callable[[], Sequence[LoadedBundle]]
    retriever: PlainRetriever
    served: ServedLists
    metrics: RequestMetrics
    max_bytes: int

    def __call__(self, batch: PlainBatch) -> LoadedBundle | None:
        """Answer or refuse each request; return the bundle that answered, None if all were refused.

        If the batch fails, its requests are retried one by one, and a request is refused only if it fails again.
        """
        requests = batch.requests()
        self.metrics.batch(sum(queries for queries, _ in requests))
        try:
            return self._answered(batch)
        except NoBundleError as error:
            self._refuse(batch, error, len(requests))
        except Exception as error:
            if len(requests) > 1:
                log.warning("a batch of %d requests failed, each is run by itself: %s", len(requests), error)
                return [self(part) for part in batch.split()][-1]
            if not isinstance(error, RequestError):
                log.exception("a request failed")
                error = RequestError("the server failed; its log says why")
            self._refuse(batch, error, 1)
        return None

    def _answered(self, batch: PlainBatch) -> LoadedBundle:
        """Answer all requests of a batch and return the bundle; raises `RequestError`."""
        loaded, wanted = self.loaded(), Wanted(*batch.wanted())
        if not loaded:
            raise NoBundleError
        bundle, left_out = loaded[0].answering(), batch.left_out()
        _require_dimension(wanted, bundle)
        if left_out is None and self.retriever.is_flat(bundle, wanted):
            found, tower, search = self.retriever.flat(bundle, wanted)
        else:
            found, tower, search = self.retriever.by_tasks(_tasks(bundle, batch, wanted, left_out))
        _require_room(batch, wanted, found, self.max_bytes)
        self.metrics.fallbacks.inc(int(found.fallback.sum()))
        self.metrics.cold.inc(int(found.cold.sum()))
        batch.answer(
            bundle.version, self._tokens(bundle.version, batch, wanted, found), found.columns(), (tower, search)
        )
        return bundle

    def _tokens(self, version: str, batch: PlainBatch, wanted: Wanted, found: Found) -> list[str]:
        """Return the attribution token of each answer, and keep the sampled ones as served lists."""
        tokens, first = [], 0
        for queries, probe in batch.requests():
            answer = partial(_of_request, slice(first, first + queries), batch, wanted, found)
            tokens.append(self.served.token(version, answer, probe=probe))
            first += queries
        return tokens

    def _refuse(self, batch: PlainBatch, error: RequestError, requests: int) -> None:
        self.metrics.refused.labels(error.reason).inc(requests)
        batch.fail(*spelled(error))


def spelled(error: RequestError) -> tuple[int, str, bytes]:
    """Return a refusal as gRPC sends it: code, message and serialised status details."""
    return code_of(error).value[0], str(error), details_of(error)


def _require_dimension(wanted: Wanted, bundle: LoadedBundle) -> None:
    """Raise `InvalidRequestError` if the queries' embeddings do not have the bundle's dimension.

    The front checks embeddings against the bundle that was served when the request came.
    """
    given = wanted.embeddings.shape[1]
    if len(wanted.embeddings) and given != bundle.manifest.dimension:
        problem = wrong_length(given, bundle)
        numbers = np.flatnonzero(wanted.of(Kind.EMBEDDING)).tolist()
        violations = [Violation(f"queries[{number}].embedding", problem) for number in numbers]
        raise InvalidRequestError(violations[:MAX_VIOLATIONS], max(0, len(violations) - MAX_VIOLATIONS))


def _require_room(batch: PlainBatch, wanted: Wanted, found: Found, most: int) -> None:
    """Raise `AnswerTooLargeError` if an answer of a batch may exceed `most` bytes."""
    if TOKEN_BYTES + _PER_QUERY * len(found.counts) + _PER_ID * (len(found.ids) + len(wanted.keys)) <= most:
        return  # small enough even with ids of the maximum length, which is nearly always the case
    items, keys = (np.append(0, np.cumsum(counts)).tolist() for counts in (found.counts, wanted.lengths))
    ids = batch.ids()
    missing = [
        [
            item
            for item, known in zip(given, found.known[keys[number] : keys[number + 1]].tolist(), strict=False)
            if not known
        ]
        for number, given in enumerate(ids)
    ]
    first = 0
    for queries, _ in batch.requests():
        last = first + queries
        sent = chain(found.ids[items[first] : items[last]], *missing[first:last])
        size = TOKEN_BYTES + _PER_QUERY * queries + sum(_OVERHEAD + len(item.encode()) for item in sent)
        if size > most:
            raise AnswerTooLargeError(size, most)
        first = last


def _tasks(
    bundle: LoadedBundle, batch: PlainBatch, wanted: Wanted, left_out: Sequence[tuple[bool, I64]] | None
) -> list[Task]:
    """Return a task for each request; `left_out` has each request's `exclude_seen` and excluded keys."""
    queries, requests = queries_of(wanted, batch.ids()), batch.requests()
    nothing = (False, np.empty(0, np.int64))
    return [
        Task(bundle, tuple(islice(queries, count)), exclude_seen=seen, excluded=ItemKeys(keys))
        for (count, _), (seen, keys) in zip(requests, left_out or [nothing] * len(requests), strict=True)
    ]


def _of_request(part: slice, batch: PlainBatch, wanted: Wanted, found: Found) -> tuple[list[Query], list[Hits]]:
    """Return the queries and hits in a part of a batch."""
    return list(queries_of(wanted, batch.ids()))[part], list(found.hits())[part]
