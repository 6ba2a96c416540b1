import re

from prometheus_client import CollectorRegistry, generate_latest

from weir.serving.metrics import BundleMetrics, RequestMetrics, RpcMetrics
from weir.serving.monitor.metrics import MonitorMetrics


def test_names_keep_to_the_rules() -> None:
    server, watcher = CollectorRegistry(), CollectorRegistry()
    for kind in (RpcMetrics, RequestMetrics, BundleMetrics):
        kind(server)
    MonitorMetrics(watcher)
    text = generate_latest(server).decode() + generate_latest(watcher).decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert all(name.startswith(("weir_", "grpc_server_")) for name in kinds)
    assert all(name.endswith("_total") for name, kind in kinds.items() if kind == "counter")
    assert not [name for name in kinds if "_age" in name or name.endswith(("_ms", "_milliseconds"))]
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    assert all(helps[name].endswith(".") for name in kinds if not name.endswith("_created"))


def test_each_registry_stands_alone() -> None:
    first, second = CollectorRegistry(), CollectorRegistry()
    RequestMetrics(first).dropped("deadline")
    RequestMetrics(second)
    assert first.get_sample_value("weir_requests_dropped_total", {"reason": "deadline"}) == 1
    assert second.get_sample_value("weir_requests_dropped_total", {"reason": "deadline"}) == 0


def test_every_reason_begins_at_zero() -> None:
    registry = CollectorRegistry()
    RequestMetrics(registry)
    for reason in ("QUEUE_FULL", "NO_BUNDLE", "INTERNAL"):
        assert registry.get_sample_value("weir_requests_refused_total", {"reason": reason}) == 0
