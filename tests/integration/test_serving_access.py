"""Who may call a real server, over gRPC and over HTTP: tokens, rights, rates, and keys that change."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.guarded import CALLS_PER_SECOND, DENIED, QUERY, Guarded, guarded_server, refused
from tests.serving.authority import Authority, Issuer
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.access_config import ClientConfig
from weir.serving.client import RetrievalClient

FORGER = Issuer()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_server(tmp_path_factory.mktemp("guarded")) as found:
        yield found


def test_two_callers_have_different_rights(guarded: Guarded) -> None:
    with guarded.client(guarded.issuer.token(sub="shop", scope="read")) as shop:
        assert len(shop.retrieve(QUERY).hits[0].item_ids) == 5
        assert shop.info().bundle_version == "v1"
        assert refused(lambda: shop.embed(QUERY)) == DENIED
        assert refused(lambda: shop.retrieve(QUERY, exact=True)) == DENIED
        assert refused(lambda: shop.retrieve(QUERY, bundle_version="v1")) == DENIED
    with guarded.client(guarded.issuer.token(sub="tester")) as tester:
        assert len(tester.retrieve(QUERY, exact=True, bundle_version="v1").hits[0].item_ids) == 5
        assert tester.embed(QUERY)[0] is not None
    with guarded.client(guarded.issuer.token(sub="nobody")) as nobody:
        assert refused(nobody.info) == DENIED


def test_the_access_log_names_the_caller_over_grpc_and_http(guarded: Guarded) -> None:
    token = guarded.issuer.token(sub="a-caller-of-its-own", scope="read")
    with guarded.client(token) as caller:
        caller.retrieve(QUERY)
        assert refused(lambda: caller.embed(QUERY)) == DENIED
    assert guarded.http("/v1/info", None, f"Bearer {token}")[0] == 200
    ends = time.monotonic() + 20
    while guarded.access_log.count("a-caller-of-its-own") < 3:
        assert time.monotonic() < ends
        time.sleep(0.02)
    lines = [json.loads(line) for line in guarded.access_log.splitlines()]
    mine = [line for line in lines if line.get("caller") == "token a-caller-of-its-own"]
    assert {(line["method"].rpartition("/")[2], line["code"]) for line in mine} == {
        ("Retrieve", "OK"),
        ("Embed", "PermissionDenied"),
        ("GetInfo", "OK"),
    }


def test_a_server_of_another_authority_is_not_talked_to(guarded: Guarded, tmp_path: Path) -> None:
    config = ClientConfig(tls=True, ca_file=Authority(tmp_path, "other").file)
    with RetrievalClient(guarded.process.target, 5, config) as client:
        assert refused(client.info)[0] == grpc.StatusCode.UNAVAILABLE
    with RetrievalClient(guarded.process.target, 5) as plain:
        assert refused(plain.info)[0] == grpc.StatusCode.UNAVAILABLE


def test_health_is_open_and_all_that_the_plain_port_has(guarded: Guarded) -> None:
    request = health_pb2.HealthCheckRequest(service="liveness")
    credentials = grpc.ssl_channel_credentials(guarded.authority.file.read_bytes())
    with grpc.secure_channel(guarded.process.target, credentials) as channel:
        assert health_pb2_grpc.HealthStub(channel).Check(request, timeout=10).status == 1
    with grpc.insecure_channel(guarded.process.said(r"health on (\S+),").group(1)) as channel:
        assert health_pb2_grpc.HealthStub(channel).Check(request, timeout=10).status == 1
        with pytest.raises(grpc.RpcError) as refusal:
            channel.unary_unary("/weir.retrieval.v1.RetrievalService/GetInfo")(b"", timeout=10)
        assert refusal.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(("sub", "may"), [("tester", True), ("shop", False), (None, False)])
def test_the_schema_is_for_those_who_may_ask_for_it(guarded: Guarded, sub: str | None, may: bool) -> None:
    metadata = [] if sub is None else [("authorization", f"Bearer {guarded.issuer.token(sub=sub, scope='read')}")]
    credentials = grpc.ssl_channel_credentials(guarded.authority.file.read_bytes())
    with grpc.secure_channel(guarded.process.target, credentials) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), metadata=metadata, timeout=10
        )
        if may:
            assert len(next(call).list_services_response.service) == 4
            return
        with pytest.raises(grpc.RpcError) as refusal:
            next(call)
        wanted = grpc.StatusCode.UNAUTHENTICATED if sub is None else grpc.StatusCode.PERMISSION_DENIED
        assert refusal.value.code() == wanted


TOKENS = st.one_of(
    st.just(()),
    st.builds(
        lambda sub, scope, changes: ("token", {"sub": sub, "scope": scope, **changes}),
        st.sampled_from(["tester", "shop"]),
        st.sampled_from(["read", "", "other"]),
        st.sampled_from([{}, {}, {}, {"exp": 1}, {"nbf": 2**40}, {"aud": "other"}, {"iss": "other"}]),
    ),
    st.sampled_from([("forged",), ("text", "Basic YTpi"), ("text", "Bearer x.y.z"), ("twice",)]),
)
REQUESTS = st.one_of(
    st.just(("GetInfo", pb.GetInfoRequest())),
    st.just(("Embed", pb.EmbedRequest(queries=QUERY))),
    st.builds(
        lambda exact, pin: (
            "Retrieve",
            pb.RetrieveRequest(queries=QUERY, params=pb.SearchParams(exact=exact), bundle_version=pin),
        ),
        st.booleans(),
        st.sampled_from(["", "v1"]),
    ),
)
HTTP = {0: 200, 7: 403, 16: 401}
PATHS = {"Retrieve": "/v1/retrieve", "Embed": "/v1/embed", "GetInfo": "/v1/info"}


@settings(max_examples=60, deadline=None)
@given(TOKENS, REQUESTS)
def test_grpc_and_http_give_equal_verdicts(guarded: Guarded, token: tuple[Any, ...], asked: tuple[str, Any]) -> None:
    method, request = asked
    made = {
        "token": lambda: [f"Bearer {guarded.issuer.token(**token[1])}"],
        "forged": lambda: [f"Bearer {FORGER.token(sub='tester')}"],
        "text": lambda: [token[1]],
        "twice": lambda: [f"Bearer {guarded.issuer.token(sub='tester')}"] * 2,
    }
    sent = made[token[0]]() if token else []
    by_grpc = guarded.rpc(method, request, *sent)
    body = None if method == "GetInfo" else json_format.MessageToJson(request).encode()
    status, answer, headers = guarded.http(PATHS[method], body, *sent)
    assert status == HTTP[by_grpc.code]
    if status == 200:
        return
    assert json_format.ParseDict(answer, status_pb2.Status()) == by_grpc
    info = error_details_pb2.ErrorInfo()
    assert by_grpc.details[0].Unpack(info)
    assert info.domain == "weir"
    wanted = {
        "TOKEN_MISSING": 'Bearer realm="weir"',
        "NOT_ALLOWED": 'Bearer realm="weir", error="insufficient_scope"',
    }.get(info.reason, 'Bearer realm="weir", error="invalid_token"')
    assert headers["WWW-Authenticate"] == wanted


def test_one_caller_s_rate_hurts_no_other(guarded: Guarded) -> None:
    greedy = f"Bearer {guarded.issuer.token(sub='greedy', scope='read')}"
    with guarded.client(guarded.issuer.token(sub="modest", scope="read")) as modest:
        stop, seen = threading.Event(), []

        def call() -> None:
            credentials = grpc.ssl_channel_credentials(guarded.authority.file.read_bytes())
            with grpc.secure_channel(guarded.process.target, credentials) as channel:
                info = channel.unary_unary("/weir.retrieval.v1.RetrievalService/GetInfo")
                while not stop.is_set():
                    try:
                        info(b"", metadata=[("authorization", greedy)], timeout=20)
                    except grpc.RpcError as error:
                        seen.append(rpc_status.from_call(error))

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            ends = time.monotonic() + 60
            while not seen and time.monotonic() < ends:
                time.sleep(0.01)
            for _ in range(20):
                modest.info()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    [status] = {each.SerializeToString(): each for each in seen[:1]}.values()
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    assert (status.code, info.reason) == (8, "CALL_RATE_EXCEEDED")
    assert 0 < retry.retry_delay.ToTimedelta().total_seconds() <= 1 / CALLS_PER_SECOND
    status_code, _, headers = guarded.http("/v1/info", None, greedy)
    assert status_code in {200, 429}
    assert status_code == 200 or headers["Retry-After"] == "1"


def test_refusals_are_counted_by_reason(guarded: Guarded) -> None:
    before = guarded.process.metric("weir_requests_refused_total", 'reason="TOKEN_EXPIRED"')
    guarded.rpc("GetInfo", pb.GetInfoRequest(), f"Bearer {guarded.issuer.token(exp=1)}")
    guarded.http("/v1/info", None, f"Bearer {guarded.issuer.token(exp=1)}")
    assert guarded.process.metric("weir_requests_refused_total", 'reason="TOKEN_EXPIRED"') == before + 2


def test_keys_are_read_again(guarded: Guarded) -> None:
    old, new = guarded.issuer, Issuer({"new": "RSA"})
    both = Issuer({"one": "EC"})
    both.keys = old.keys | new.keys
    assert guarded.rpc("GetInfo", pb.GetInfoRequest(), f"Bearer {new.token('new', sub='tester')}").code == 16
    both.publish(guarded.folder / "jwks.json")
    ends = time.monotonic() + 20
    while guarded.rpc("GetInfo", pb.GetInfoRequest(), f"Bearer {new.token('new', sub='tester')}").code:
        assert time.monotonic() < ends
        time.sleep(0.1)
    assert guarded.rpc("GetInfo", pb.GetInfoRequest(), f"Bearer {old.token(sub='tester')}").code == 0
