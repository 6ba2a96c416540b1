"""What the front counts is added to what Python counts, series by series."""

from typing import Any

from prometheus_client import CollectorRegistry

from weir.serving.metrics import SECONDS, RequestMetrics, RpcMetrics
from weir.serving.native.collected import shown_together

METHOD = {
    "grpc_type": "unary",
    "grpc_service": "weir.retrieval.v1.RetrievalService",
    "grpc_method": "Retrieve",
}


def counted() -> dict[str, Any]:
    """Return counts of three calls: two answered in 3 and 30 ms, one cancelled."""
    buckets = [0] * (len(SECONDS) + 1)
    buckets[SECONDS.index(0.005)] = 1
    buckets[SECONDS.index(0.05)] = 1
    stage = (buckets, 0.033)
    return {
        "started": 3,
        "handled": {0: 2, 1: 1},
        "refused": {"QUEUE_FULL": 4},
        "dropped": {"cancelled": 1},
        "seconds": stage,
        "stages": [stage] * 4,
        "depth": 7,
    }


def test_counts_add_up() -> None:
    own = CollectorRegistry(auto_describe=True)
    rpcs, requests = RpcMetrics(own), RequestMetrics(own)
    rpcs.started.labels(*METHOD.values()).inc(5)
    rpcs.handled.labels(*METHOD.values(), "OK").inc(5)
    rpcs.seconds.labels(*METHOD.values()).observe(0.004)
    requests.stage_seconds([("total", 0.2)])
    requests.refused.labels("QUEUE_FULL").inc()
    requests.depth(2)
    shown = shown_together(own, counted)

    def value(name: str, **labels: str) -> float | None:
        return shown.get_sample_value(name, labels)

    assert value("weir_plain_calls_total") == 3
    assert value("grpc_server_started_total", **METHOD) == 8
    assert value("grpc_server_handled_total", **METHOD, grpc_code="OK") == 7
    assert value("grpc_server_handled_total", **METHOD, grpc_code="Canceled") == 1
    assert value("grpc_server_handling_seconds_bucket", **METHOD, le="0.002") == 0
    assert value("grpc_server_handling_seconds_bucket", **METHOD, le="0.005") == 2
    assert value("grpc_server_handling_seconds_bucket", **METHOD, le="+Inf") == 3
    assert value("weir_request_stage_seconds_count", stage="total") == 3
    assert value("weir_request_stage_seconds_count", stage="queue") == 2
    assert value("weir_requests_refused_total", reason="QUEUE_FULL") == 5
    assert value("weir_requests_dropped_total", reason="cancelled") == 1
    assert value("weir_queue_queries") == 9


def test_before_the_front_listens_the_rest_is_shown_alone() -> None:
    own = CollectorRegistry(auto_describe=True)
    RequestMetrics(own).depth(2)
    assert shown_together(own, dict).get_sample_value("weir_queue_queries") == 2
