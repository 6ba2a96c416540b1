"""Traces as a collector gets them from a real server, and the way from a metric to a trace."""

import json
import re
import secrets
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.serving.collector import Collector, attributes, collecting
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc

REQUEST = pb.RetrieveRequest(queries=[pb.Query(history=pb.History(item_ids=["item-1", "item-2"]), k=5)])
DEAR = pb.RetrieveRequest(
    queries=[pb.Query(history=pb.History(item_ids=["item-1"]), k=200)] * 128, params=pb.SearchParams(exact=True)
)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture(scope="module")
def server(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("traced")
    store = Store(str(folder / "store"))
    write_bundle(store, "v1", Catalogue.random())
    tracing = {"endpoint": collector.target, "ratio": 0.0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with ServerProcess(store, http_port=0, tracing=tracing) as process:
            process.serving("v1")
            yield process


class Caller:
    """Someone whose trace a call belongs to."""

    def __init__(self, *, kept: bool = True) -> None:
        self.trace, self.span, self.kept = secrets.token_bytes(16), secrets.token_bytes(8), kept

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace.hex()}-{self.span.hex()}-{int(self.kept):02x}"

    def owns(self, span: Span) -> bool:
        return span.trace_id == self.trace

    def retrieve(self, server: ServerProcess, request: pb.RetrieveRequest = REQUEST) -> pb.RetrieveResponse:
        with grpc.insecure_channel(server.target) as channel:
            stub = retrieval_pb2_grpc.RetrievalServiceStub(channel)
            return stub.Retrieve(request, metadata=[("traceparent", self.traceparent)], timeout=60)


def by_name(spans: list[Span]) -> dict[str, Span]:
    return {span.name: span for span in spans}


def is_within(inner: Span, outer: Span) -> bool:
    slack = 2_000_000  # the clocks' rounding
    early = outer.start_time_unix_nano - slack <= inner.start_time_unix_nano
    return early and inner.end_time_unix_nano <= outer.end_time_unix_nano + slack


def test_a_call_is_part_of_its_callers_trace_down_to_tower_and_search(
    server: ServerProcess, collector: Collector
) -> None:
    caller = Caller()
    caller.retrieve(server)
    spans = by_name(collector.wait_for(3, caller.owns))
    call = spans["weir.retrieval.v1.RetrievalService/Retrieve"]
    assert (call.parent_span_id, call.kind) == (caller.span, Span.SPAN_KIND_SERVER)
    assert attributes(call) == {
        "rpc.system": "grpc",
        "rpc.service": "weir.retrieval.v1.RetrievalService",
        "rpc.method": "Retrieve",
        "rpc.grpc.status_code": 0,
    }
    for name in ("queue", "batch"):
        assert spans[name].parent_span_id == call.span_id
        assert is_within(spans[name], call)
    (link,) = spans["batch"].links
    inside = by_name(collector.wait_for(3, lambda span: span.trace_id == link.trace_id))
    batch = inside["batch"]
    assert (batch.span_id, batch.parent_span_id) == (link.span_id, b"")
    assert [one.span_id for one in batch.links] == [call.span_id]
    assert attributes(batch)["weir.bundle_version"] == "v1"
    for name in ("tower", "search"):
        assert inside[name].parent_span_id == batch.span_id
        assert is_within(inside[name], batch)
    assert inside["tower"].start_time_unix_nano == batch.start_time_unix_nano
    assert inside["tower"].end_time_unix_nano == inside["search"].start_time_unix_nano
    assert inside["search"].end_time_unix_nano == batch.end_time_unix_nano
    assert {"service.name": "weir-serving"}.items() <= collector.resources[0].items()


def test_one_batch_is_linked_to_every_call_that_it_answers(server: ServerProcess, collector: Collector) -> None:
    """Callers at once, beside calls that keep the server busy: some share a batch, and all links are mutual."""
    callers = [Caller() for _ in range(24)]
    with ThreadPoolExecutor(28) as pool:
        busy = [pool.submit(Caller(kept=False).retrieve, server, DEAR) for _ in range(3)]
        for answer in [*busy, *(pool.submit(caller.retrieve, server) for caller in callers)]:
            answer.result()
    traces = {caller.trace for caller in callers}
    own = collector.wait_for(3 * len(callers), lambda span: span.trace_id in traces)
    calls = {span.span_id: span for span in own if span.kind == Span.SPAN_KIND_SERVER}
    parts = [span for span in own if span.name == "batch"]
    assert len(calls) == len(parts) == len(callers)
    wanted = {link.span_id for part in parts for link in part.links}
    batches = {span.span_id: span for span in collector.wait_for(len(wanted), lambda span: span.span_id in wanted)}
    for part in parts:
        (link,) = part.links
        batch = batches[link.span_id]
        assert part.parent_span_id in {one.span_id for one in batch.links}
        assert part.start_time_unix_nano == batch.start_time_unix_nano
    linked = [link for batch in batches.values() for link in batch.links]
    assert sorted(link.span_id for link in linked) == sorted(calls)
    assert all(link.trace_id == calls[link.span_id].trace_id for link in linked)
    assert max(attributes(batch)["weir.batch.traced_calls"] for batch in batches.values()) > 1


def test_what_the_caller_does_not_keep_is_not_sent(server: ServerProcess, collector: Collector) -> None:
    silent, kept = Caller(kept=False), Caller()
    silent.retrieve(server)
    kept.retrieve(server)
    collector.wait_for(3, kept.owns)
    assert [span for span in collector.spans if silent.owns(span)] == []


def test_a_refusal_is_in_the_trace_with_its_code_and_nothing_of_the_request(
    server: ServerProcess, collector: Collector
) -> None:
    caller = Caller()
    with pytest.raises(grpc.RpcError):
        caller.retrieve(server, pb.RetrieveRequest(queries=[pb.Query(user_id="ann-of-green-gables", k=0)]))
    (call,) = collector.wait_for(1, caller.owns)
    assert attributes(call)["rpc.grpc.status_code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert call.status.code == Status.STATUS_CODE_UNSET  # the caller's fault, not the server's
    assert b"ann-of-green-gables" not in b"".join(span.SerializeToString() for span in collector.spans)


@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "é" * 20])
def test_a_call_over_http_is_traced_as_well_and_a_broken_parent_is_none(
    server: ServerProcess, collector: Collector, traceparent: str
) -> None:
    address, caller = server.said(r"HTTP on (127\.0\.0\.1:\d+)").group(1), Caller()
    body = json.dumps({"queries": [{"itemId": "item-1"}]}).encode()

    def ask(value: str) -> int:
        headers = {"Content-Type": "application/json", "traceparent": value.encode().decode("latin-1")}
        request = urllib.request.Request(f"http://{address}/v1/retrieve", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - http
            return int(answer.status)

    assert ask(traceparent) == 200
    assert ask(caller.traceparent) == 200
    assert len(collector.wait_for(3, caller.owns)) == 3


def test_latency_metrics_name_a_trace_to_look_at(server: ServerProcess, collector: Collector) -> None:
    caller = Caller()
    caller.retrieve(server)
    port = server.said(r"metrics on port (\d+)").group(1)
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Accept": "application/openmetrics-text"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - http
        text = answer.read().decode()
    for metric in ("grpc_server_handling_seconds", "weir_request_stage_seconds"):
        found = re.findall(rf'^{metric}_bucket{{.*}} \S+ # {{trace_id="([0-9a-f]{{32}})"}} ', text, flags=re.M)
        assert caller.trace.hex() in found, metric


def test_a_collector_that_is_away_costs_no_answer(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    write_bundle(store, "v1", Catalogue.random())
    with ServerProcess(store, tracing={"endpoint": "http://127.0.0.1:9", "ratio": 1.0}) as server:
        server.serving("v1")
        assert len(Caller().retrieve(server).hits[0].item_ids) == 5
        assert server.terminate() == 0


def test_spans_that_wait_are_sent_when_the_server_ends(collector: Collector, tmp_path: Path) -> None:
    store, caller = Store(str(tmp_path / "store")), Caller()
    write_bundle(store, "v1", Catalogue.random())
    with ServerProcess(store, tracing={"endpoint": collector.target}) as server:
        server.serving("v1")
        caller.retrieve(server)
        assert server.terminate() == 0
    assert len([span for span in collector.spans if caller.owns(span)]) == 3
