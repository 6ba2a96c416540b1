"""Prometheus metrics of the server, a class for each topic, and the current call's trace, to which samples link.

No tracing library is needed here; `weir.serving.rpc.instrumentation` creates the spans.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from weir.contracts import BundleManifest
from weir.contracts.interactions.catalogue import Catalogue
from weir.serving.errors import RequestError

__all__ = [
    "SECONDS",
    "BatchTimes",
    "BundleMetrics",
    "CallTrace",
    "CatalogueMetrics",
    "HistoryMetrics",
    "ProcessMetrics",
    "RequestMetrics",
    "RpcMetrics",
    "ServedMetrics",
    "call_trace",
    "exemplar",
]

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class BatchTimes:
    """A batch's bundle version and number of queries, and the times (monotonic seconds) of its stages.

    The batch `started`, then had its query vectors (`embedded`), then its items (`found`).
    """

    bundle_version: str
    queries: int
    started: float
    embedded: float
    found: float


class CallTrace(Protocol):
    """The trace of a call, which records the call's stages as spans."""

    trace_id: str

    def queued(self) -> None:
        """Record that the call waits for its batch from now on."""

    def answered_with(self, calls: Sequence[Self], times: BatchTimes) -> None:
        """Record the batch that answered `calls`, including this call; called once per batch, from any thread."""


call_trace: Final[ContextVar[CallTrace | None]] = ContextVar("call_trace", default=None)
"""Trace of the call that the current task answers; None if it is not traced."""


def exemplar() -> dict[str, str] | None:
    """Return the exemplar labels that link a metric sample to the current call's trace; None without a trace."""
    trace = call_trace.get()
    return None if trace is None else {"trace_id": trace.trace_id}


class RpcMetrics:
    """Metrics of calls by method and code, with the names of go-grpc-prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("grpc_type", "grpc_service", "grpc_method")
        self.started = Counter("grpc_server_started", "RPCs started.", labels, registry=registry)
        self.handled = Counter("grpc_server_handled", "RPCs ended, by code.", (*labels, "grpc_code"), registry=registry)
        self.seconds = Histogram(
            "grpc_server_handling_seconds",
            "Seconds from a RPC's start to its end.",
            labels,
            buckets=SECONDS,
            registry=registry,
        )
        self.unwritten = Counter(
            "weir_access_log_dropped",
            "Lines of the access log that were dropped, because the reader was too slow.",
            registry=registry,
        )


class RequestMetrics:
    """Metrics of the stages, batches, queue and refusals of requests; a `BatchObserver`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.stages = Histogram(
            "weir_request_stage_seconds",
            "Seconds of a request by stage: total, queue, and the tower and search of its batch.",
            ("stage",),
            buckets=SECONDS,
            registry=registry,
        )
        # Looking up a series by its label costs more than an observation.
        self._stages = {stage: self.stages.labels(stage) for stage in ("total", "queue", "tower", "search")}
        self.batches = Histogram(
            "weir_batch_queries", "Queries answered together.", buckets=_BATCHES, registry=registry
        )
        self.waiting = Gauge("weir_queue_queries", "Queries that wait for a batch.", registry=registry)
        self.refused = Counter(
            "weir_requests_refused", "Requests that got an error instead of an answer.", ("reason",), registry=registry
        )
        self.gone = Counter(
            "weir_requests_dropped",
            "Requests dropped before the search: client gone (cancelled) or deadline passed (deadline).",
            ("reason",),
            registry=registry,
        )
        # Without these zeros the first refusal would not count in `rate()`: a series that starts at 1 never rose.
        errors: list[type[RequestError]] = [RequestError, *RequestError.__subclasses__()]
        for error in errors:
            self.refused.labels(error.reason)
        for reason in ("cancelled", "deadline"):
            self.gone.labels(reason)
        self.fallbacks = Counter("weir_fallbacks", "Queries answered with popular items.", registry=registry)
        self.cold = Counter("weir_cold_hits", "Items returned that no bundle has had.", registry=registry)
        self.missing_features = Counter(
            "weir_missing_features", "Features of queries that the bundle does not know.", registry=registry
        )

    def batch(self, queries: int) -> None:
        """Count a batch."""
        self.batches.observe(queries)

    def depth(self, queries: int) -> None:
        """Set how many queries wait."""
        self.waiting.set(queries)

    def dropped(self, reason: str) -> None:
        """Count a job that was dropped before it ran."""
        self.gone.labels(reason).inc()

    def stage_seconds(self, seconds: Sequence[tuple[str, float]]) -> None:
        """Record the seconds of a request's stages, as (stage, seconds) pairs."""
        trace = exemplar()
        for stage, value in seconds:
            self._stages[stage].observe(value, trace)


class ServedMetrics:
    """Metrics of served lists, the answers that are kept in the store to be joined with clicks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.lists = Counter(
            "weir_served_lists",
            "Served lists by outcome: written to the store, or dropped because too many waited.",
            ("outcome",),
            registry=registry,
        )
        for outcome in ("written", "dropped"):
            self.lists.labels(outcome)
        self.files = Counter("weir_served_files", "Files of served lists written to the store.", registry=registry)
        self.errors = Counter(
            "weir_served_errors",
            "Failed attempts to write served lists, or to remove old ones.",
            registry=registry,
        )


class HistoryMetrics:
    """Metrics of user histories: loaded rows, missing files, lag and errors."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.rows = Gauge(
            "weir_history_rows",
            "Rows of users in the history files; a user has one in each file that holds something of it.",
            registry=registry,
        )
        self.sequence = Gauge(
            "weir_history_sequence", "Newest window whose events are in the histories that are read.", registry=registry
        )
        self.sequence.set(-1)
        self.uncovered = Gauge(
            "weir_history_uncovered_windows",
            "Committed windows whose events the store's histories do not hold.",
            registry=registry,
        )
        self.missing = Gauge("weir_history_missing_files", "History files that are not fetched yet.", registry=registry)
        self.absent = Counter(
            "weir_history_absent",
            "Look-ups of users who count as unknown because a file of theirs was not fetched yet.",
            registry=registry,
        )
        self.unavailable = Counter(
            "weir_history_unavailable",
            "Look-ups of users who count as unknown because Redis did not answer or holds no histories.",
            registry=registry,
        )
        self.behind_commits = Gauge(
            "weir_history_behind_commits", "Commits of the store that are not in Redis.", registry=registry
        )
        self.behind_seconds = Gauge(
            "weir_history_behind_seconds",
            "Seconds since Redis was last known to hold all commits; 0 where histories are files.",
            registry=registry,
        )
        self.errors = Counter(
            "weir_history_errors", "Commits, history files and records that could not be read.", registry=registry
        )


class CatalogueMetrics:
    """Metrics of the catalogue, the takedown list and cold items."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.items = Gauge("weir_catalogue_items", "Items in the catalogue; 0 where there is none.", registry=registry)
        self.tags = Gauge("weir_catalogue_tags", "Distinct tags of the catalogue.", registry=registry)
        self.refused = Gauge(
            "weir_catalogue_refused_rows", "Rows of the catalogue that could not be used.", registry=registry
        )
        self.read_at = Gauge(
            "weir_catalogue_read_timestamp_seconds", "When the catalogue that is in use was read.", registry=registry
        )
        self.read_seconds = Gauge(
            "weir_catalogue_read_seconds", "Seconds that reading the catalogue took.", registry=registry
        )
        self.takedowns = Gauge("weir_takedown_items", "Items that are taken down.", registry=registry)
        self.cold = Gauge(
            "weir_cold_items",
            "Items that the bundle does not have and that are answered from features.",
            registry=registry,
        )
        self.cold_left_out = Gauge(
            "weir_cold_items_left_out", "Further ones, beyond serving.cold_items.", registry=registry
        )
        self.unusable = Gauge(
            "weir_catalogue_unusable",
            "1 while the newest catalogue, or list of items taken down, cannot be read: the one before stays in use.",
            ("file",),
            registry=registry,
        )
        for file in ("catalogue", "takedown"):
            self.unusable.labels(file)

    def read(self, catalogue: Catalogue, seconds: float) -> None:
        """Set the metrics to a catalogue that was read just now, in this many seconds."""
        self.items.set(len(catalogue))
        self.tags.set(len(catalogue.tags))
        self.refused.set(catalogue.refused)
        self.read_at.set_to_current_time()
        self.read_seconds.set(seconds)


class BundleMetrics:
    """Metrics of the served bundle, and of swaps, refusals and deltas."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.info = Gauge(
            "weir_bundle_served_info",
            "The bundle that is served; always 1.",
            ("version", "index", "metric"),
            registry=registry,
        )
        self.max_event = Gauge(
            "weir_bundle_max_event_timestamp_seconds",
            "Event time of the newest event that the served bundle was trained on.",
            registry=registry,
        )
        self.max_event_wall = Gauge(
            "weir_bundle_max_event_wall_timestamp_seconds",
            "When that event happened by the wall clock, Unix time; it differs for a replay only.",
            registry=registry,
        )
        self.servable = Gauge(
            "weir_bundle_servable_timestamp_seconds", "When the served bundle was swapped in.", registry=registry
        )
        self.items = Gauge("weir_index_items", "Items in the served index.", registry=registry)
        self.swaps = Counter("weir_bundle_swaps", "Bundles swapped in, the first included.", registry=registry)
        self.rollbacks = Counter(
            "weir_bundle_rollbacks", "Bundles swapped in that are older than the one before.", registry=registry
        )
        self.refused = Counter("weir_bundle_refused", "Bundles that could not be loaded.", registry=registry)
        self.load_seconds = Histogram(
            "weir_bundle_load_seconds",
            "Seconds to read, verify and warm up a bundle.",
            buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
            registry=registry,
        )
        self.pause_seconds = Histogram(
            "weir_bundle_delta_pause_seconds",
            "Seconds for which queries waited while a delta was taken in place.",
            buckets=SECONDS,
            registry=registry,
        )
        self.deltas = Counter(
            "weir_bundle_deltas", "Versions reached by deltas from the one before.", ("how",), registry=registry
        )
        for how in ("clone", "in_place"):
            self.deltas.labels(how)
        self.damaged = Counter(
            "weir_bundle_damaged",
            "Changes in place that failed midway; the server reads the promoted bundle as at its start.",
            registry=registry,
        )
        self.dropped = Counter(
            "weir_bundle_dropped",
            "Bundles dropped before the next one was read, because memory has no room for both.",
            registry=registry,
        )

    def nothing(self) -> None:
        """Set the metrics to no served bundle."""
        self.info.clear()
        self.items.set(0)

    def served(
        self, manifest: BundleManifest, *, items: int, servable_at: float, happened: float, is_older: bool
    ) -> None:
        """Set the metrics to the newly served bundle, and count the swap.

        `happened` is the wall-clock time of the bundle's newest event. `is_older`: the bundle was created before the
        bundle that it replaces.
        """
        self.info.clear()
        self.info.labels(manifest.version, manifest.index.type, manifest.metric).set(1)
        self.max_event.set(manifest.max_event_ms / 1000)
        self.max_event_wall.set(happened)
        self.servable.set(servable_at)
        self.items.set(items)
        self.swaps.inc()
        if is_older:
            self.rollbacks.inc()


class ProcessMetrics:
    """Metrics of the worker processes of a server with several processes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.running = Gauge("weir_server_processes", "Processes that answer on the server's port.", registry=registry)
        self.restarts = Counter(
            "weir_server_process_restarts", "Processes that ended and were started again.", registry=registry
        )
