"""The access log of a real server, and what becomes of lines that nobody reads."""

import asyncio
import io
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry, Counter

from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving import access_log
from weir.serving.access_log import AccessLog, note

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
