"""The same service over HTTP and over gRPC, of one real server process; deadlines of HTTP calls."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import grpc
import pytest
import yaml
from google.protobuf import json_format
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ports import free_port
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, user_weights, write_bundle
from weir.contracts import Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.config import LimitsConfig
from weir.serving.http.gateway import seconds_of

LIMITS = LimitsConfig(max_queries=4, max_k=50, max_history_item_ids=5, max_excluded_item_ids=3)
WORD = {"Content-Type": "application/json"}
assert error_details_pb2, "its types have to be known where details are read"


@dataclass
class Server:
    """Where a server answers."""

    process: ServerProcess
    stub: "retrieval_pb2_grpc.RetrievalServiceStub"
    address: str

    def ask(
        self, path: str, body: bytes | None = None, headers: dict[str, str] = WORD, method: str | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        """Return HTTP status, decoded body and headers of an answer."""
        request = urllib.request.Request(self.address + path, body, headers, method=method)  # noqa: S310 - http
        try:
            answer = urllib.request.urlopen(request, timeout=30)  # noqa: S310 - http
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            return answer.status, json.loads(answer.read() or "null"), dict(answer.headers)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    store = Store(str(tmp_path_factory.mktemp("store")))
    write_bundle(store, "v1", Catalogue.random(), user_features=user_weights())
    with ServerProcess(store, http_port=0, limits=LIMITS, max_request_bytes=1 << 20) as process:
        process.serving("v1")
        with grpc.insecure_channel(process.target) as channel:
            stub = retrieval_pb2_grpc.RetrievalServiceStub(channel)
            yield Server(process, stub, "http://" + process.said(r"HTTP on (\S+),").group(1))


def test_a_query_says_what_is_known_of_its_user(server: Server) -> None:
    said = {"country": {"values": ["de"]}, "age": {"number": 31}, "size": {"number": 3}}
    body = {"queries": [{"userId": "nobody", "features": said, "k": 5}]}
    status, found, _ = server.ask("/v1/retrieve", json.dumps(body).encode())
    [hits] = found["hits"]
    assert (status, hits["fallback"], hits["missingFeatures"]) == (200, False, ["size"])
    wanted = json_format.ParseDict(body, pb.RetrieveRequest())
    assert server.stub.Retrieve(wanted).hits[0].item_ids == hits["itemIds"]
    _, info, _ = server.ask("/v1/info")
    assert info["userFeatures"] == {"categorical": ["country", "langs"], "dense": ["age", "since"]}
    body["queries"][0]["features"] = {"age": {"number": "NaN"}}
    status, refusal, _ = server.ask("/v1/retrieve", json.dumps(body).encode())
    assert (status, refusal["message"]) == (
        400,
        'queries[0].features["age"]: is nan, must be a finite number (32 bits)',
    )


def items(most: int) -> st.SearchStrategy[list[str]]:
    known = st.integers(0, 199).map(lambda number: f"item-{number}")
    return st.lists(st.one_of(known, st.text(st.characters(exclude_categories=["Cs"]), max_size=3)), max_size=most)


LARGEST = 2.0**127
"""The very largest floats are written as JSON with fewer digits, rounded up to what the mapping refuses to read."""
NOT_FINITE = st.sampled_from([float("nan"), float("inf"), float("-inf")])
SOURCES = st.one_of(
    st.builds(lambda user: {"user_id": user}, st.sampled_from(["u1", "stranger", ""])),
    st.builds(lambda ids: {"history": pb.History(item_ids=ids)}, items(7)),
    st.builds(
        lambda values: {"embedding": pb.Embedding(values=values)}, st.lists(st.floats(-9, 9, width=32), max_size=9)
    ),
    st.builds(
        lambda values: {"embedding": pb.Embedding(values=values)},
        st.lists(st.one_of(st.floats(-LARGEST, LARGEST, width=32), NOT_FINITE), min_size=8, max_size=8),
    ),
    st.builds(lambda item: {"item_id": item}, st.sampled_from(["item-3", "nothing"])),
    st.just({}),
)
QUERIES = st.builds(
    lambda source, k: pb.Query(**source, **k), SOURCES, st.sampled_from([{}, {"k": 0}, {"k": 7}, {"k": 51}])
)
REQUESTS = st.builds(
    lambda queries, exclude, ids, exact, pin, tags, diversity: pb.RetrieveRequest(
        queries=queries,
        exclude_seen=exclude,
        excluded_item_ids=ids,
        params=pb.SearchParams(exact=exact),
        bundle_version=pin,
        filter=pb.Filter(any_tags=tags),
        diversity=diversity,
    ),
    st.lists(QUERIES, max_size=5),
    st.booleans(),
    items(4),
    st.booleans(),
    st.sampled_from(["", "", "", "v1", "v0"]),
    st.sampled_from([[], [], [], ["jazz"]]),
    st.sampled_from([None, None, None, pb.Diversity(max_per_tag=2, tag_prefix="é"), pb.Diversity()]),
)


def over_grpc(call: Any, request: Any) -> tuple[Any, status_pb2.Status | None]:
    try:
        return call(request), None
    except grpc.RpcError as error:
        return None, rpc_status.from_call(error)


def read(error: Any) -> Any:
    """Return an error as its message says it; maps inside have no order."""
    return json_format.MessageToDict(json_format.ParseDict(error, status_pb2.Status()))


def same(ours: Any, theirs: Any) -> None:
    """Two answers say the same, except for the times and the name that each has of its own."""
    for answer in (ours, theirs):
        answer.ClearField("timing")
        if isinstance(answer, pb.RetrieveResponse):
            answer.ClearField("attribution_token")
    assert ours == theirs


@settings(max_examples=150, deadline=None)
@given(REQUESTS, st.booleans())
def test_an_answer_is_that_of_grpc(server: Server, request: pb.RetrieveRequest, spelt: bool) -> None:
    body = json_format.MessageToJson(request, preserving_proto_field_name=spelt).encode()
    status, found, _ = server.ask("/v1/retrieve", body)
    answer, refusal = over_grpc(server.stub.Retrieve, request)
    if refusal is None:
        assert status == 200
        same(json_format.ParseDict(found, pb.RetrieveResponse()), answer)
    else:
        assert status in {400, 501}
        assert read(found) == json_format.MessageToDict(refusal)


@settings(max_examples=30, deadline=None)
@given(st.lists(QUERIES, max_size=5))
def test_a_vector_is_that_of_grpc(server: Server, queries: list[pb.Query]) -> None:
    request = pb.EmbedRequest(queries=queries)
    status, found, _ = server.ask("/v1/embed", json_format.MessageToJson(request).encode())
    answer, refusal = over_grpc(server.stub.Embed, request)
    if refusal is None:
        assert status == 200
        same(json_format.ParseDict(found, pb.EmbedResponse()), answer)
    else:
        assert read(found) == json_format.MessageToDict(refusal)


def test_what_is_served_is_described(server: Server) -> None:
    status, found, _ = server.ask("/v1/info", headers={})
    assert status == 200
    assert json_format.ParseDict(found, pb.GetInfoResponse()) == server.stub.GetInfo(pb.GetInfoRequest())


def test_the_schema_describes_every_path(server: Server) -> None:
    with urllib.request.urlopen(f"{server.address}/openapi.yaml", timeout=30) as answer:  # noqa: S310 - http
        schema = yaml.safe_load(answer.read())
    assert {path: list(methods) for path, methods in schema["paths"].items()} == {
        "/v1/retrieve": ["post"],
        "/v1/embed": ["post"],
        "/v1/info": ["get"],
    }
    fields = {field.json_name for field in pb.Hits.DESCRIPTOR.fields}
    assert schema["components"]["schemas"]["Hits"]["properties"].keys() == fields


def test_all_fields_of_an_answer_are_there(server: Server) -> None:
    _, found, _ = server.ask("/v1/retrieve", b'{"queries": [{"userId": "stranger", "k": 2}]}')
    (hits,) = found["hits"]
    of_items = {"itemIds", "scores", "missingItemIds", "cold"}
    assert hits.keys() == {*of_items, "missingFeatures", "fallback", "seenBounded", "complete"}
    assert hits["fallback"]
    assert len(hits["itemIds"]) == 2


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "no JSON"),
        (b"[]", "an object is wanted, list came"),
        (b'{"querys": []}', "querys"),
        (b'{"queries": [{"k": "many"}]}', "many"),
        (b'{"queries": 7}', "queries"),
        (b"\xff\xfe", "no JSON"),
        (b'{"queries":' * 30_000, "no JSON"),
        (b'{"queries": [{"userId": "\\ud800"}]}', "no JSON"),
    ],
)
def test_what_is_no_message_is_refused_by_name(server: Server, body: bytes, problem: str) -> None:
    status, found, _ = server.ask("/v1/retrieve", body)
    assert (status, found["code"]) == (400, 3)
    assert problem in found["message"]
    assert found["details"][0]["reason"] == "UNDECODABLE"
    assert len(found["message"]) < 700


def test_many_small_objects_are_refused_before_they_are_made(server: Server) -> None:
    status, found, _ = server.ask("/v1/retrieve", b'{"queries": [' + b"{}," * 340_000 + b"{}]}")
    assert status == 400
    assert "fields" in found["message"]


def test_a_large_request_is_refused_unread(server: Server) -> None:
    status, found, _ = server.ask("/v1/retrieve", b" " * ((1 << 20) + 1))
    assert (status, found["code"]) == (413, grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])


def test_what_is_not_there_is_answered_with_what_is(server: Server) -> None:
    status, found, _ = server.ask("/v2/retrieve", b"{}")
    assert (status, found["code"]) == (404, grpc.StatusCode.NOT_FOUND.value[0])
    assert "POST /v1/retrieve" in found["message"]
    status, found, headers = server.ask("/v1/retrieve", headers={})
    assert (status, headers["Allow"]) == (405, "POST")


def test_a_page_of_the_web_gets_nothing(server: Server) -> None:
    status, found, _ = server.ask("/v1/info", headers={"Host": "evil.example"})
    assert (status, found["code"]) == (403, grpc.StatusCode.PERMISSION_DENIED.value[0])
    status, found, headers = server.ask("/v1/retrieve", b"{}", {"Content-Type": "text/plain"})
    assert status == 415
    assert "application/json" in found["message"]
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_a_deadline_counts_and_names_of_calls_come_back(server: Server) -> None:
    body = b'{"queries": [{"userId": "u1"}]}'
    status, found, headers = server.ask("/v1/retrieve", body, {**WORD, "Grpc-Timeout": "0m", "X-Request-Id": "seven"})
    assert (status, found["code"]) == (504, grpc.StatusCode.DEADLINE_EXCEEDED.value[0])
    assert headers["x-request-id"] == "seven"
    status, _, headers = server.ask("/v1/retrieve", body, {**WORD, "Grpc-Timeout": "20S", "X-Request-Id": "eight"})
    assert (status, headers["x-request-id"]) == (200, "eight")


def test_calls_are_counted_with_those_of_grpc(server: Server) -> None:
    labels = ('grpc_method="GetInfo"', 'grpc_code="OK"')
    before = server.process.metric("grpc_server_handled_total", *labels)
    server.ask("/v1/info", headers={})
    server.stub.GetInfo(pb.GetInfoRequest())
    assert server.process.metric("grpc_server_handled_total", *labels) == before + 2


def asked(connection: HTTPConnection) -> int:
    connection.request("GET", "/v1/info")
    return connection.getresponse().status


def test_connections_are_capped_and_those_open_are_not_touched(store: Store) -> None:
    with ServerProcess(store, http_port=0, max_connections=3) as process:
        host, port = process.said(r"HTTP on (\S+):(\d+),").groups()
        with ExitStack() as stack:
            first, *others = [stack.enter_context(closing(HTTPConnection(host, int(port), 30))) for _ in range(3)]
            for connection in (first, *others):
                connection.connect()
            late = stack.enter_context(closing(HTTPConnection(host, int(port), 30)))
            with pytest.raises(OSError, match=r"reset|closed|Broken"):
                asked(late)
            assert asked(first) == 503


def test_a_server_without_a_bundle_says_so_and_one_whose_port_is_taken_ends(store: Store) -> None:
    port = free_port()
    with ServerProcess(store, http_port=port) as waiting:
        waiting.said("HTTP on")
        status, found, _ = Server(waiting, None, f"http://127.0.0.1:{port}").ask("/v1/info", headers={})
        assert (status, found["details"][0]["reason"]) == (503, "NO_BUNDLE")
        with ServerProcess(store, http_port=port) as late:
            late.process.wait(60)
        assert "Address already in use" in "".join(late.lines)
        waiting.process.terminate()
        assert waiting.process.wait(30) == 0


UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


@given(st.integers(0, 10**8 - 1), st.sampled_from(sorted(UNITS)))
def test_timeouts_are_those_of_grpc(number: int, unit: str) -> None:
    assert seconds_of(f"{number}{unit}") == number * UNITS[unit]


@given(st.one_of(st.text(max_size=12), st.from_regex(r"\A(-?\d{9,}[HMS]|\d+|\d+s|[HMS]\d+)\Z")))
def test_other_words_are_no_timeout(text: str) -> None:
    is_one = len(text) in range(2, 10) and text[-1] in UNITS and text[:-1].isdecimal() and text[:-1].isascii()
    assert (seconds_of(text) is not None) == is_one
