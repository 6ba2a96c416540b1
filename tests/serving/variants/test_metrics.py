from prometheus_client import CollectorRegistry

from tests.serving.support import Catalogue, write_bundle
from weir.contracts import BundleLog, Store
from weir.contracts.variants import Roles
from weir.serving.loading import load_bundle
from weir.serving.variants.metrics import LineMetrics


def test_only_what_answers_now_is_shown(store: Store, catalogue: Catalogue) -> None:
    for version in ("v1", "v2"):
        write_bundle(store, version, catalogue)
    registry = CollectorRegistry()
    metrics = LineMetrics(registry)
    for version in ("v1", "v2"):
        metrics.show(Roles(), [load_bundle(BundleLog(store), version)])
    labels = {"variant": "main", "role": "champion"}
    assert registry.get_sample_value("weir_variant_served_info", {**labels, "version": "v2"}) == 1
    assert registry.get_sample_value("weir_variant_served_info", {**labels, "version": "v1"}) is None
    assert registry.get_sample_value("weir_variant_calls_total", {"variant": "main"}) == 0
