"""The metrics of the monitor and of the comparison of variants."""

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from weir.contracts.base.statistics import Pool
from weir.contracts.bundles.variants import MEASURES, Comparison
from weir.serving.monitor.attribution import OUTCOMES, Attribution
from weir.serving.monitor.results import WindowRecall

__all__ = ["AttributionMetrics", "MonitorMetrics", "VariantMetrics"]

_VERDICTS: Final = {"better": 1, "not yet": 0, "worse": -1}

_POSITIONS = 20
"""Number of list positions with a series of their own."""


class VariantMetrics:
    """Gauges of the current comparison of variants; without a challenger they have no series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"weir_variant_{name}", text, ("challenger", *labels), registry=registry)

        self.mean = gauge(
            "mean",
            "Recall as served (macro over users of each window), or share of lists clicked.",
            "measure",
            "variant",
        )
        self.difference = gauge("difference", "Challenger less champion.", "measure")
        self.low = gauge("difference_low", "Lower end of its interval, valid at any time.", "measure")
        self.high = gauge("difference_high", "Upper end of its interval, valid at any time.", "measure")
        self.units = gauge("units", "Observations: users within a window, or users.", "measure")
        self.verdict = gauge("verdict", "1: the challenger is better, -1: worse, 0: not known yet.", "measure")
        self.skipped = gauge("skipped_events", "Events that recall was not compared on.", "reason")

    def clear(self) -> None:
        """Remove all series."""
        for one in (self.mean, self.difference, self.low, self.high, self.units, self.verdict, self.skipped):
            one.clear()

    def show(self, comparison: Comparison) -> None:
        """Set the gauges to a comparison."""
        self.clear()
        challenger = comparison.challenger
        for measure in MEASURES:
            found = comparison.measured(measure)
            sides = ((comparison.champion, found.champion), (challenger, found.challenger))
            for line, value in sides if found.units else ():
                self.mean.labels(challenger, measure, line).set(value)
            if found.units:
                self.difference.labels(challenger, measure).set(found.challenger - found.champion)
            self.low.labels(challenger, measure).set(found.interval.low)
            self.high.labels(challenger, measure).set(found.interval.high)
            self.units.labels(challenger, measure).set(found.units)
            self.verdict.labels(challenger, measure).set(_VERDICTS[found.word])
        for reason, count in comparison.skipped.items():
            self.skipped.labels(challenger, reason).set(count)


_FRESHNESS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)


class MonitorMetrics:
    """Metrics of the monitor: recall over the newest windows, freshness, skipped events and errors.

    Recalls are means over events (macro over events) of all panes of these windows. A window with few events is pooled
    with the windows before it (`weir.contracts.base.statistics`).
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        kinds = {
            "index": "Share of the exact top k that approximate search finds, by score; mean over events.",
            "model": "Share of next events in the exact top k, nothing left out, before training; mean over events.",
            "served": "Share of next events in the served top k, seen items left out, before training; mean of events.",
            "committed": "As served, with the histories that were committed before the window; mean over events.",
            "popularity": "Share of next events among the k items most popular before the window; mean over events.",
        }
        self._pool = Pool()
        self.recall = {
            kind: Gauge(f"weir_recall_{kind}", sentence, ("k",), registry=registry) for kind, sentence in kinds.items()
        }
        self.examples = Counter(
            "weir_recall_examples", "Events whose answers were counted.", ("kind",), registry=registry
        )
        self.skipped = Counter(
            "weir_recall_skipped",
            "Events whose answers were not counted: trained (the bundle was trained on them), swapped (bundles changed "
            "between two requests), retired (the bundle's manifest is gone), other_log (it was trained on windows "
            "that the commit log does not hold).",
            ("reason",),
            registry=registry,
        )
        for reason in ("trained", "swapped", "retired", "other_log"):
            self.skipped.labels(reason)
        self.age_events = Counter(
            "weir_recall_freshness_events",
            "Events whose answers were counted, by the age, at the event, of the bundle or of the histories.",
            ("of", "up_to"),
            registry=registry,
        )
        self.age_hits = Counter(
            "weir_recall_freshness_hits",
            "Those of them whose next item was in the served top k, by the age of the bundle or of the histories.",
            ("of", "up_to", "k"),
            registry=registry,
        )
        self.windows = Counter("weir_recall_windows", "Panes of windows measured.", registry=registry)
        self.sequence = Gauge(
            "weir_recall_sequence", "Number of the pane measured last, -1 before the first.", registry=registry
        )
        self.errors = Counter("weir_monitor_errors", "Attempts that failed and are made again.", registry=registry)
        self.freshness = Histogram(
            "weir_event_to_servable_seconds",
            "Seconds from an event to the first served bundle trained on it; 100 quantiles of each window's events.",
            buckets=_FRESHNESS,
            registry=registry,
        )

    def known(self, result: WindowRecall) -> None:
        """Add a pane's result, new or read from the store, and show the recalls of the newest windows."""
        for kind, gauge in self.recall.items():
            values: Mapping[int, float] = getattr(result, kind)
            self._pool.add(result.window, kind, values, result.cases(kind))
            for k, value in self._pool.means(kind).items():
                gauge.labels(k).set(value)

    def measured(self, result: WindowRecall) -> None:
        """Add the result of a newly measured pane, and count its events."""
        self.known(result)
        for one in result.ages:
            up_to = "+Inf" if one.up_to is None else f"{one.up_to:g}"
            self.age_events.labels(one.of, up_to).inc(one.cases)
            for k, hits in one.hits.items():
                self.age_hits.labels(one.of, up_to, k).inc(hits)
        for kind in ("model", "served", "popularity"):
            self.examples.labels(kind).inc(getattr(result.examples, kind))
        for reason, count in result.examples.skipped.items():
            self.skipped.labels(reason).inc(count)
        self.windows.inc()
        self.sequence.set(result.sequence)


class AttributionMetrics:
    """Metrics of clicks on served lists, for the newest bundles whose lists the monitor has read."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.lists = Gauge(
            "weir_attribution_lists", "Served lists of a bundle, of the newest bundles.", ("bundle",), registry=registry
        )
        self.click_through = Gauge(
            "weir_attribution_click_through",
            "Share of a bundle's served lists with a click; mean over lists.",
            ("bundle",),
            registry=registry,
        )
        self.coverage = Gauge(
            "weir_attribution_coverage",
            "Share of a bundle's items that are in at least one served list.",
            ("bundle",),
            registry=registry,
        )
        self.variant_lists = Gauge(
            "weir_attribution_variant_lists",
            "Served lists of a line of bundles (trainer.variants), of the newest bundles.",
            ("variant",),
            registry=registry,
        )
        self.variant_click_through = Gauge(
            "weir_attribution_variant_click_through",
            "Share of a line's served lists with a click; mean over lists.",
            ("variant",),
            registry=registry,
        )
        self.positions = Gauge(
            "weir_attribution_position_click_through",
            "Share of served lists whose item at this position, from 1, was clicked; mean over lists.",
            ("position",),
            registry=registry,
        )
        self.clicks = Counter(
            "weir_attribution_clicks",
            "Positive events with the token of an answer, by outcome; joined ones are clicks on a served list.",
            ("outcome",),
            registry=registry,
        )
        for outcome in OUTCOMES:
            self.clicks.labels(outcome)
        self.errors = Counter(
            "weir_attribution_errors", "Attempts to join clicks with served lists that failed.", registry=registry
        )
        self._counted: dict[str, int] = {}

    def show(self, attribution: Attribution, items: Mapping[str, int | None]) -> None:
        """Show the attribution so far; `items` maps each bundle version to its number of items, None if unknown."""
        of_bundles = (self.lists, self.click_through, self.coverage)
        for gauge in (*of_bundles, self.variant_lists, self.variant_click_through):
            gauge.clear()
        for version, shown in attribution.bundles.items():
            self.lists.labels(version).set(shown.lists)
            self.click_through.labels(version).set(shown.click_through)
            if count := items.get(version):
                self.coverage.labels(version).set(len(shown.items) / count)
        for variant, (lists, clicked) in attribution.by_variant().items():
            self.variant_lists.labels(variant).set(lists)
            self.variant_click_through.labels(variant).set(clicked / lists)
        for position, (count, clicks) in enumerate(attribution.by_position()[:_POSITIONS], start=1):
            self.positions.labels(str(position)).set(clicks / count)
        for outcome, count in attribution.outcomes.items():
            self.clicks.labels(outcome).inc(count - self._counted.get(outcome, 0))
        self._counted = dict(attribution.outcomes)
