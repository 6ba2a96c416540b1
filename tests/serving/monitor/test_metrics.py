import numpy as np
from prometheus_client import CollectorRegistry

from weir.contracts.base.statistics import Running
from weir.contracts.bundles.variants import Comparison
from weir.serving.monitor.metrics import VariantMetrics

DIFFERENT = Comparison(
    champion="main",
    challenger="new",
    hits={"main": Running().add(np.zeros(500)), "new": Running().add(np.ones(500))},
    differences=Running().add(np.ones(500)),
    skipped={"trained": 3},
)


def test_the_comparison_is_shown_and_taken_away() -> None:
    registry = CollectorRegistry()
    metrics = VariantMetrics(registry)

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"weir_variant_{name}", {"challenger": "new", **labels})

    metrics.show(DIFFERENT)
    assert sample("mean", measure="recall", variant="main") == 0
    assert sample("mean", measure="recall", variant="new") == 1
    assert sample("difference", measure="recall") == 1
    low, high = DIFFERENT.measured("recall").interval
    assert (sample("difference_low", measure="recall"), sample("difference_high", measure="recall")) == (low, high)
    assert (sample("verdict", measure="recall"), sample("verdict", measure="clicks")) == (1, 0)
    assert (sample("units", measure="recall"), sample("units", measure="clicks")) == (500, 0)
    assert sample("skipped_events", reason="trained") == 3
    assert sample("mean", measure="clicks", variant="main") is None
    metrics.clear()
    assert sample("verdict", measure="recall") is None
