"""What the pipeline reports of a topic to Prometheus."""

from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from weir.contracts import SourceSpan

__all__ = ["REASONS", "TopicMetrics"]

REASONS: Final = ("deleted", "truncated")
"""Why a partition stops: the broker deleted messages that were not committed, or lost some that were."""


class TopicMetrics:
    """The metrics of one topic; without a topic they stay as they are at the start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.away = Gauge(
            "weir_pipeline_brokers_away",
            "1 while no Kafka broker answers; nothing is committed then.",
            registry=registry,
        )
        self.stopped = Gauge(
            "weir_pipeline_stopped_partitions",
            "Partitions of the topic that are not read, because messages are gone from the broker, by reason.",
            ["reason"],
            registry=registry,
        )
        self.unread = Gauge(
            "weir_pipeline_unread_offsets",
            "Offsets between what was read and the end, by partition of the topic.",
            ["partition"],
            registry=registry,
        )
        self.lost = Counter(
            "weir_pipeline_lost_offsets_total",
            "Offsets that were passed over unread, because the broker had no messages there any more (accept_gap).",
            registry=registry,
        )
        self.skipped = Counter(
            "weir_pipeline_valueless_messages_total",
            "Messages without a value (tombstones of a compacted topic), which are no events.",
            registry=registry,
        )
        self._skipped: dict[str, int] = {}
        self.stop(())

    def stop(self, reasons: Iterable[str]) -> None:
        """Show how many partitions are stopped."""
        counts = Tally(reasons)
        for reason in REASONS:
            self.stopped.labels(reason).set(counts[reason])

    def started(self, spans: Mapping[str, SourceSpan]) -> None:
        """Remember what was counted before this process."""
        self._skipped = {key: span.skipped for key, span in spans.items()}

    def observe(self, spans: Mapping[str, SourceSpan]) -> None:
        """Add what a commit says of its sources."""
        for key, span in spans.items():
            self.skipped.inc(span.skipped - self._skipped.get(key, 0))
            self._skipped[key] = span.skipped
