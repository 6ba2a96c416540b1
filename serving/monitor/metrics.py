"""The metrics of the monitor."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from serving.monitor.results import WindowRecall

__all__ = ["MonitorMetrics"]

_FRESHNESS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)


class MonitorMetrics:
    """Gauges describe the window measured last; all recalls are means over events (macro over events)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        kinds = {
            "index": "Share of the exact top k that approximate search finds, by score; mean over events.",
            "model": "Share of next events in the exact top k, nothing left out, before training; mean over events.",
            "served": "Share of next events in the served top k, seen items left out, before training; mean of events.",
            "popularity": "Share of next events among the k items most popular before the window; mean over events.",
        }
        self.recall = {
            kind: Gauge(f"weir_recall_{kind}", sentence, ("k",), registry=registry) for kind, sentence in kinds.items()
        }
        self.examples = Counter(
            "weir_recall_examples", "Events whose answers were counted.", ("kind",), registry=registry
        )
        self.skipped = Counter(
            "weir_recall_skipped",
            "Events whose answers were not counted: trained (the bundle was trained on them), swapped (bundles changed "
            "between two requests), retired (the bundle's manifest is gone).",
            ("reason",),
            registry=registry,
        )
        for reason in ("trained", "swapped", "retired"):
            self.skipped.labels(reason)
        self.windows = Counter("weir_recall_windows", "Windows measured.", registry=registry)
        self.sequence = Gauge(
            "weir_recall_sequence", "Commit number of the window measured last, -1 before the first.", registry=registry
        )
        self.errors = Counter("weir_monitor_errors", "Attempts that failed and are made again.", registry=registry)
        self.freshness = Histogram(
            "weir_event_to_servable_seconds",
            "Seconds from an event to the first served bundle trained on it; 100 quantiles of each window's events.",
            buckets=_FRESHNESS,
            registry=registry,
        )

    def measured(self, result: WindowRecall) -> None:
        """Show a window's result; metrics without examples keep their values."""
        for kind in self.recall:
            values: Mapping[int, float] = getattr(result, kind)
            for k, value in values.items():
                self.recall[kind].labels(k).set(value)
        for kind in ("model", "served", "popularity"):
            self.examples.labels(kind).inc(getattr(result.examples, kind))
        for reason, count in result.examples.skipped.items():
            self.skipped.labels(reason).inc(count)
        self.windows.inc()
        self.sequence.set(result.sequence)
