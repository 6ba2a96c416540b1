"""The metrics of the comparison."""

from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from weir.contracts.comparison import MEASURES, Comparison

__all__ = ["VariantMetrics"]

_VERDICTS: Final = {"better": 1, "not yet": 0, "worse": -1}


class VariantMetrics:
    """Gauges of the comparison in course; without one they have no series."""

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
        """Show nothing."""
        for one in (self.mean, self.difference, self.low, self.high, self.units, self.verdict, self.skipped):
            one.clear()

    def show(self, comparison: Comparison) -> None:
        """Show how far it has got."""
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
