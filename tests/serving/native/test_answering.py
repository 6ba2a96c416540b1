"""Batches of plain requests are answered, refused, counted and named, whatever they hold."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tests.serving.support import Catalogue, histories_of, poisonous_tower, write_bundle, write_window
from weir.contracts import BundleLog, Store, hash_id
from weir.contracts.served_lists import segment_of
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.serving.config import ServedConfig
from weir.serving.metrics import SECONDS, RequestMetrics, RpcMetrics, ServedMetrics
from weir.serving.native.answering import Answering, shown_together
from weir.serving.native.columns import F32, I64, Kind, PlainBatch
from weir.serving.native.plain import PlainRetriever
from weir.serving.search.retriever import Retriever
from weir.serving.served_lists import ServedLists

PACKAGE = pytest.importorskip("weir_front", reason="needs the compiled front: make native, which needs Rust")


@dataclass
class Batch:
    """Histories that wait, one for each request, and embeddings behind them, and what became of them."""

    histories: list[list[str]]
    embeddings: F32 = field(default_factory=lambda: np.empty((0, 0), np.float32))
    probe: bool = False
    excluded: list[str] | None = None
    answers: list[tuple[str, Sequence[str], dict[str, Any]]] = field(default_factory=list)
    failures: list[tuple[int, str, bytes]] = field(default_factory=list)
    parts: "list[Batch]" = field(default_factory=list)

    @property
    def queries(self) -> int:
        return len(self.histories) + len(self.embeddings)

    def wanted(self) -> tuple[I64, I64, I64, I64, F32]:
        keys = [hash_id(item) for history in self.histories for item in history]
        lengths = [len(history) for history in self.histories] + [0] * len(self.embeddings)
        kinds = np.repeat([Kind.HISTORY, Kind.EMBEDDING], [len(self.histories), len(self.embeddings)])
        return np.array(keys, np.int64), np.array(lengths), kinds, np.full(self.queries, 3), self.embeddings

    def ids(self) -> list[list[str]]:
        return [*self.histories, *([] for _ in self.embeddings)]

    def left_out(self) -> list[tuple[bool, I64]] | None:
        if self.excluded is None:
            return None
        return [(True, np.array([hash_id(item) for item in self.excluded], np.int64))] * len(self.histories)

    def requests(self) -> list[tuple[int, bool]]:
        return [(1, self.probe)] * self.queries

    def answer(self, version: str, tokens: Sequence[str], found: dict[str, Any], seconds: tuple[float, float]) -> None:
        assert all(each >= 0 for each in seconds)
        self.answers.append((version, tokens, found))

    def fail(self, code: int, message: str, details: bytes) -> None:
        self.failures.append((code, message, details))

    def split(self) -> list[PlainBatch]:
        self.parts = [Batch([history]) for history in self.histories]
        self.parts += [Batch([], self.embeddings[number : number + 1]) for number in range(len(self.embeddings))]
        return [*self.parts]


@dataclass
class Served:
    """An answering server without connections."""

    answering: Answering
    bundles: list[LoadedBundle]
    lists: ServedLists
    registry: CollectorRegistry

    def count(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def served(store: Store, catalogue: Catalogue) -> Served:
    embeddings = catalogue.embeddings.copy()
    embeddings[2] = 2000  # of item-0, which the tower fails on
    poisoned = Catalogue(catalogue.ids, catalogue.vectors, embeddings, catalogue.popularity)
    write_window(store, 0, [])
    write_bundle(store, "v1", poisoned, tower=poisonous_tower())
    registry, bundles = CollectorRegistry(), [load_bundle(BundleLog(store), "v1")]
    lists = ServedLists(ServedConfig(share=1), ServedMetrics(registry))
    retriever = PlainRetriever(Retriever(histories_of(store)), PACKAGE)
    return Served(
        Answering(lambda: bundles, retriever, lists, RequestMetrics(registry), 4 << 20), bundles, lists, registry
    )


def test_each_request_is_answered_named_and_kept(served: Served) -> None:
    batch = Batch([["item-1"], ["item-2", "gone"], ["nobody knows"]])
    assert served.answering(batch) is served.bundles[0]
    [(version, tokens, found)] = batch.answers
    assert version == "v1"
    assert found["counts"] == [3, 3, 3]
    assert found["fallback"] == [False, False, True]
    assert found["known"].tolist() == [True, True, False, False]
    rows = served.lists.take()
    assert {segment_of(token) for token in tokens} == {rows.segment}
    kept = rows.table().to_pylist()
    assert [row["attribution_token"] for row in kept] == list(tokens)
    assert [item for row in kept for item in row["item_ids"]] == found["ids"]
    assert served.count("weir_batch_queries_sum") == 3
    assert served.count("weir_fallbacks_total") == 1


def test_what_a_request_leaves_out_is_not_found(served: Served) -> None:
    first, second = Batch([["item-1"], ["gone"]]), Batch([["item-1"], ["gone"]])
    served.answering(first)
    [(_, _, before)] = first.answers
    second.excluded = [before["ids"][0], before["ids"][3]]
    served.answering(second)
    [(_, _, found)] = second.answers
    assert found["counts"] == [3, 3]
    assert found["fallback"] == [False, True]
    assert found["known"].tolist() == [True, False]
    assert not {*second.excluded, "item-1"} & set(found["ids"])
    assert found["ids"][3:5] == before["ids"][4:6]


def test_nothing_is_kept_of_a_probe(served: Served) -> None:
    batch = Batch([["item-1"]], probe=True)
    served.answering(batch)
    [(_, [token], _)] = batch.answers
    assert segment_of(token) is None
    assert not served.lists.take().lists


def test_a_request_that_fails_does_not_fail_its_neighbours(served: Served) -> None:
    batch = Batch([["item-1"], ["item-0"], ["item-2"]])
    served.answering(batch)
    good, bad, other = batch.parts
    assert good.answers
    assert other.answers
    [(code, message, details)] = bad.failures
    assert (code, message) == (13, "the server failed; its log says why")
    assert b"INTERNAL" in details
    assert served.count("weir_requests_refused_total", reason="INTERNAL") == 1


def test_embeddings_of_a_bundle_before_are_refused_alone(served: Served) -> None:
    batch = Batch([["item-1"]], np.ones((2, 5), np.float32))
    served.answering(batch)
    good, *bad = batch.parts
    assert good.answers
    for part in bad:
        [(code, message, details)] = part.failures
        assert code == 3
        assert "has 5 values, bundle v1 has 8 dimensions" in message
        assert b"queries[0].embedding" in details
    assert served.count("weir_requests_refused_total", reason="INVALID_REQUEST") == 2


def test_without_a_bundle_all_are_told_so(served: Served) -> None:
    served.bundles.clear()
    batch = Batch([["item-1"], ["item-2"]])
    assert served.answering(batch) is None
    [(code, message, details)] = batch.failures
    assert code == 14
    assert "no bundle is loaded" in message
    assert b"NO_BUNDLE" in details
    assert served.count("weir_requests_refused_total", reason="NO_BUNDLE") == 2


def test_an_answer_that_callers_would_not_take_fails_alone(served: Served) -> None:
    small = Answering(served.answering.loaded, served.answering.retriever, served.lists, served.answering.metrics, 2000)
    batch = Batch([["item-1"], ["item-2", "é" * 1000], ["item-3", *["item-2"] * 400]])
    small(batch)
    short, long, known = batch.parts
    assert short.answers
    assert known.answers
    [(code, _, details)] = long.failures
    assert (code, b"ANSWER_TOO_LARGE" in details) == (9, True)
    assert len(served.lists.take().lists) == 2


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
