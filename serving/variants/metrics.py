"""Prometheus metrics of champion and challenger."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from weir.contracts.variants import Roles
from weir.serving.bundle import LoadedBundle

__all__ = ["LineMetrics"]


class LineMetrics:
    """The served variants, and the calls that each of them answered."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.served = Gauge(
            "weir_variant_served_info",
            "The bundles that answer, by line and role; always 1.",
            ("variant", "role", "version"),
            registry=registry,
        )
        self.calls = Counter(
            "weir_variant_calls",
            "Calls by the line that was chosen; probes do not count.",
            ("variant",),
            registry=registry,
        )

    def show(self, roles: Roles, loaded: list[LoadedBundle]) -> None:
        """Update the metrics to the loaded bundles."""
        self.served.clear()
        for bundle in loaded:
            line = bundle.manifest.variant
            role = "champion" if line == roles.champion else "challenger"
            self.served.labels(line, role, bundle.version).set(1)
            self.calls.labels(line)
