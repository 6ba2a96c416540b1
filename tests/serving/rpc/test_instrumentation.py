"""The access log, metrics and traces of calls to a real server."""

import asyncio
import io
import json
import re
import secrets
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client import CollectorRegistry, Counter

from tests.serving.collector import Collector, attributes, collecting
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.rpc import instrumentation as access_log
from weir.serving.rpc.instrumentation import (
    AccessLog,
    AroundInterceptor,
    CallTimer,
    Handler,
    WrappingInterceptor,
    go_name,
    is_over,
    names_of,
    note,
)

RETRIEVE = "weir.retrieval.v1.RetrievalService/Retrieve"
NOBODYS = "ann-of-green-gables"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("logged")
    store = Store(str(folder / "store"))
    write_bundle(store, "v1", Catalogue.random())
    with ServerProcess(store, http_port=0, access_log=True, out=folder / "access.jsonl") as process:
        process.serving("v1")
        yield process


def lines_of(server: ServerProcess, request_id: str) -> list[dict[str, Any]]:
    """Wait for lines about calls with a request id."""
    assert server.out is not None
    ends = time.monotonic() + 20
    while time.monotonic() < ends:
        lines = [json.loads(line) for line in server.out.read_bytes().splitlines() if line.endswith(b"}")]
        if found := [line for line in lines if line.get("request_id") == request_id]:
            return found
        time.sleep(0.02)
    raise AssertionError(f"no line of {request_id}")


def retrieve(server: ServerProcess, request_id: str, *queries: pb.Query) -> pb.RetrieveResponse:
    with grpc.insecure_channel(server.target) as channel:
        stub = retrieval_pb2_grpc.RetrievalServiceStub(channel)
        request = pb.RetrieveRequest(queries=queries)
        return stub.Retrieve(request, metadata=[("x-request-id", request_id)], timeout=60)


def test_an_answer_has_a_line_with_its_bundle_and_nothing_of_what_was_asked(server: ServerProcess) -> None:
    history = pb.History(item_ids=["item-1", NOBODYS])
    retrieve(server, "one", pb.Query(user_id=NOBODYS, k=5), pb.Query(history=history, k=3))
    [line] = lines_of(server, "one")
    assert line.pop("time").endswith("Z")
    assert 0 < line.pop("ms") < 60_000
    expected = {"method": RETRIEVE, "code": "OK", "bundle": "v1", "queries": 2, "items": 8, "request_id": "one"}
    assert line == expected
    assert server.out is not None
    assert NOBODYS.encode() not in server.out.read_bytes()


def test_a_refusal_has_its_code_and_reason(server: ServerProcess) -> None:
    with pytest.raises(grpc.RpcError):
        retrieve(server, "two", pb.Query(user_id=NOBODYS, k=100_000))
    [line] = lines_of(server, "two")
    assert (line["code"], line["reason"]) == ("InvalidArgument", "INVALID_REQUEST")
    assert NOBODYS not in json.dumps(line)


def test_a_call_over_http_has_the_same_line(server: ServerProcess) -> None:
    address = server.said(r"HTTP on (127\.0\.0\.1:\d+)").group(1)
    for name, body in {"three": b'{"queries": [{"itemId": "item-1", "k": 4}]}', "odd-\xff": b"{"}.items():
        headers = {"Content-Type": "application/json", "X-Request-Id": name}
        request = urllib.request.Request(f"http://{address}/v1/retrieve", body, headers)
        with suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=60):  # noqa: S310 - http
            pass
    [line] = lines_of(server, "three")
    assert (line["method"], line["code"], line["items"]) == (RETRIEVE, "OK", 4)
    [line] = lines_of(server, "odd-\udcff")
    assert (line["method"], line["code"], line["reason"]) == (RETRIEVE, "InvalidArgument", "UNDECODABLE")


def test_health_has_no_lines(server: ServerProcess) -> None:
    assert server.out is not None
    retrieve(server, "four", pb.Query(item_id="item-1"))
    lines_of(server, "four")
    assert b"health" not in server.out.read_bytes()


class Slow(io.BytesIO):
    """An output whose reader waits for `goes_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def write(self, data: Any, /) -> int:
        self.goes_on.wait(20)
        return super().write(data)


class Context:
    """What the log uses of a call."""

    def time_remaining(self) -> None:
        return None

    def code(self) -> None:
        return None

    def invocation_metadata(self) -> None:
        return None


def test_lines_that_nobody_reads_are_counted_and_hold_up_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "_WAITING", 3)
    dropped, out = Counter("dropped", "lines", registry=CollectorRegistry()), Slow()
    log = AccessLog(dropped, out)

    async def inner(request: Any, _context: Any) -> Any:
        note(number=request, name="\udcff")
        return request

    handle = log.logged(inner, "service", "Method")

    async def call_ten() -> list[Any]:
        return [await handle(number, Context()) for number in range(10)]

    assert asyncio.run(call_ten()) == list(range(10))
    out.goes_on.set()
    log.close()
    written = [json.loads(line) for line in out.getvalue().splitlines()]
    [metric] = dropped.collect()
    lost = next(sample.value for sample in metric.samples if sample.name == "dropped_total")
    assert len(written) + lost == 10
    assert lost >= 6
    assert written[0]["number"] == 0


def test_without_a_log_there_is_nothing_to_note() -> None:
    note(bundle="v1")


class ContextEnding:
    """A call with a deadline, of which so much is left once it has been asked for."""

    def __init__(self, allowed: float | None, left: float | None, code: object = None) -> None:
        self._remaining, self._code = [allowed, left], code

    def time_remaining(self) -> float | None:
        return self._remaining.pop(0)

    def code(self) -> object:
        return self._code


def ended(context: ContextEnding, error: BaseException | None) -> CallTimer:
    ending = CallTimer(context)
    if error is None:
        with ending:
            pass
        return ending
    with pytest.raises(type(error)), ending:
        raise error
    return ending


def test_an_answer_is_ok_after_some_time() -> None:
    ending = ended(ContextEnding(None, None), None)
    assert ending.code == grpc.StatusCode.OK
    assert 0 < ending.seconds < 60


@pytest.mark.parametrize("code", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INVALID_ARGUMENT.value[0]])
def test_a_refusal_has_the_code_that_it_was_aborted_with(code: object) -> None:
    assert ended(ContextEnding(None, None, code), RuntimeError()).code == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("code", [None, 0, 999])
def test_any_other_exception_is_unknown(code: object) -> None:
    assert ended(ContextEnding(None, None, code), RuntimeError()).code == grpc.StatusCode.UNKNOWN


@pytest.mark.parametrize(
    ("allowed", "left", "code"),
    [
        (None, None, grpc.StatusCode.CANCELLED),
        (10.0, 5.0, grpc.StatusCode.CANCELLED),
        (10.0, 0.1, grpc.StatusCode.DEADLINE_EXCEEDED),
        (10.0, -1.0, grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
def test_who_leaves_before_the_deadline_has_cancelled(
    allowed: float | None, left: float | None, code: grpc.StatusCode
) -> None:
    assert ended(ContextEnding(allowed, left), asyncio.CancelledError()).code == code


@given(st.floats(0.001, 1e6), st.floats(0, 1))
def test_a_deadline_is_over_with_the_last_fiftieth_of_it(allowed: float, share: float) -> None:
    assert is_over(allowed, share * allowed) == (share * allowed <= 0.02 * allowed)
    assert not is_over(None, share)
    assert not is_over(allowed, None)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (grpc.StatusCode.OK, "OK"),
        (grpc.StatusCode.CANCELLED, "Canceled"),
        (grpc.StatusCode.INVALID_ARGUMENT, "InvalidArgument"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "DeadlineExceeded"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "ResourceExhausted"),
        (grpc.StatusCode.UNAUTHENTICATED, "Unauthenticated"),
    ],
)
def test_codes_are_spelt_as_go_spells_them(code: grpc.StatusCode, name: str) -> None:
    assert go_name(code) == name


REQUEST = pb.RetrieveRequest(queries=[pb.Query(history=pb.History(item_ids=["item-1", "item-2"]), k=5)])
DEAR = pb.RetrieveRequest(
    queries=[pb.Query(history=pb.History(item_ids=["item-1"]), k=200)] * 128, params=pb.SearchParams(exact=True)
)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture(scope="module")
def traced_server(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
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

    def retrieve(self, traced_server: ServerProcess, request: pb.RetrieveRequest = REQUEST) -> pb.RetrieveResponse:
        with grpc.insecure_channel(traced_server.target) as channel:
            stub = retrieval_pb2_grpc.RetrievalServiceStub(channel)
            return stub.Retrieve(request, metadata=[("traceparent", self.traceparent)], timeout=60)


def by_name(spans: list[Span]) -> dict[str, Span]:
    return {span.name: span for span in spans}


def is_within(inner: Span, outer: Span) -> bool:
    slack = 2_000_000  # the clocks' rounding
    early = outer.start_time_unix_nano - slack <= inner.start_time_unix_nano
    return early and inner.end_time_unix_nano <= outer.end_time_unix_nano + slack


def test_a_call_is_part_of_its_callers_trace_down_to_tower_and_search(
    traced_server: ServerProcess, collector: Collector
) -> None:
    caller = Caller()
    caller.retrieve(traced_server)
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


def test_one_batch_is_linked_to_every_call_that_it_answers(traced_server: ServerProcess, collector: Collector) -> None:
    """Callers at once, beside calls that keep the server busy: some share a batch, and all links are mutual."""
    callers = [Caller() for _ in range(24)]
    with ThreadPoolExecutor(28) as pool:
        busy = [pool.submit(Caller(kept=False).retrieve, traced_server, DEAR) for _ in range(3)]
        for answer in [*busy, *(pool.submit(caller.retrieve, traced_server) for caller in callers)]:
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


def test_what_the_caller_does_not_keep_is_not_sent(traced_server: ServerProcess, collector: Collector) -> None:
    silent, kept = Caller(kept=False), Caller()
    silent.retrieve(traced_server)
    kept.retrieve(traced_server)
    collector.wait_for(3, kept.owns)
    assert [span for span in collector.spans if silent.owns(span)] == []


def test_a_refusal_is_in_the_trace_with_its_code_and_nothing_of_the_request(
    traced_server: ServerProcess, collector: Collector
) -> None:
    caller = Caller()
    with pytest.raises(grpc.RpcError):
        caller.retrieve(traced_server, pb.RetrieveRequest(queries=[pb.Query(user_id="ann-of-green-gables", k=0)]))
    (call,) = collector.wait_for(1, caller.owns)
    assert attributes(call)["rpc.grpc.status_code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert call.status.code == Status.STATUS_CODE_UNSET  # the caller's fault, not the server's
    assert b"ann-of-green-gables" not in b"".join(span.SerializeToString() for span in collector.spans)


@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "é" * 20])
def test_a_call_over_http_is_traced_as_well_and_a_broken_parent_is_none(
    traced_server: ServerProcess, collector: Collector, traceparent: str
) -> None:
    address, caller = traced_server.said(r"HTTP on (127\.0\.0\.1:\d+)").group(1), Caller()
    body = json.dumps({"queries": [{"itemId": "item-1"}]}).encode()

    def ask(value: str) -> int:
        headers = {"Content-Type": "application/json", "traceparent": value.encode().decode("latin-1")}
        request = urllib.request.Request(f"http://{address}/v1/retrieve", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - http
            return int(answer.status)

    assert ask(traceparent) == 200
    assert ask(caller.traceparent) == 200
    assert len(collector.wait_for(3, caller.owns)) == 3


def test_latency_metrics_name_a_trace_to_look_at(traced_server: ServerProcess, collector: Collector) -> None:
    caller = Caller()
    caller.retrieve(traced_server)
    port = traced_server.said(r"metrics on port (\d+)").group(1)
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
    with ServerProcess(store, tracing={"endpoint": "http://127.0.0.1:9", "ratio": 1.0}) as traced_server:
        traced_server.serving("v1")
        assert len(Caller().retrieve(traced_server).hits[0].item_ids) == 5
        assert traced_server.terminate() == 0


def test_spans_that_wait_are_sent_when_the_server_ends(collector: Collector, tmp_path: Path) -> None:
    store, caller = Store(str(tmp_path / "store")), Caller()
    write_bundle(store, "v1", Catalogue.random())
    with ServerProcess(store, tracing={"endpoint": collector.target}) as traced_server:
        traced_server.serving("v1")
        caller.retrieve(traced_server)
        assert traced_server.terminate() == 0
    assert len([span for span in collector.spans if caller.owns(span)]) == 3


class Counting(WrappingInterceptor):
    """Keeps what it was asked to wrap."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, str]] = []

    def wrapped(self, handler: Any, path: str) -> Any:
        self.seen.append((handler, path))
        return f"wrapped {handler}"


def test_each_method_is_wrapped_once_and_an_unknown_one_is_asked_for_again() -> None:
    interceptor, found = Counting(), {"/s/A": "a", "/s/B": "b"}
    asked: list[str] = []

    async def continuation(details: Any) -> Any:
        asked.append(details.method)
        return found.get(details.method)

    async def handler(path: str) -> Any:
        return await interceptor.intercept_service(continuation, SimpleNamespace(method=path))  # type: ignore[arg-type]

    async def scenario() -> list[Any]:
        return [await handler(path) for path in ("/s/A", "/s/A", "/s/B", "/s/C", "/s/C", "/s/A")]

    assert asyncio.run(scenario()) == ["wrapped a", "wrapped a", "wrapped b", None, None, "wrapped a"]
    assert interceptor.seen == [("a", "/s/A"), ("b", "/s/B")]
    assert asked == ["/s/A", "/s/B", "/s/C", "/s/C"]


def test_something_is_put_around_unary_calls_only_and_messages_stay_as_they_are() -> None:
    def around(inner: Handler, service: str, method: str) -> Handler:
        async def handle(request: Any, context: Any) -> Any:
            return service, method, await inner(request, context)

        return handle

    async def double(request: int, _: Any) -> int:
        return 2 * request

    interceptor = AroundInterceptor(around)
    plain = grpc.unary_unary_rpc_method_handler(double, request_deserializer=int, response_serializer=str)
    handler = interceptor.wrapped(plain, "/weir.S/Double")
    assert asyncio.run(handler.unary_unary(4, None)) == ("weir.S", "Double", 8)
    assert (handler.request_deserializer, handler.response_serializer) == (int, str)
    stream = grpc.unary_stream_rpc_method_handler(double)
    assert interceptor.wrapped(stream, "/weir.S/Watch") is stream


def test_a_path_names_service_and_method() -> None:
    assert names_of("/weir.retrieval.v1.RetrievalService/Embed") == ("weir.retrieval.v1.RetrievalService", "Embed")
