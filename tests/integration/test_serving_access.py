"""Access to a real server: tokens, certificates that are renewed under load, rights, rates, and no secret told."""

import asyncio
import http.client
import json
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
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

from tests.integration import guarded as closing_clients
from tests.integration import hostile
from tests.integration.guarded import CALLS_PER_SECOND, DENIED, QUERY, Guarded, guarded_server, refused
from tests.serving.authority import Authority, Issuer
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.access.channel import credentials_of
from weir.serving.access_config import ClientConfig
from weir.serving.client import RetrievalClient, RetrievalError

FORGER = Issuer()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_server(tmp_path_factory.mktemp("guarded")) as found:
        yield found


def test_ten_thousand_forged_tokens_are_refused_by_name_and_hurt_no_neighbour(guarded: Guarded) -> None:
    tokens = [*hostile.forged_tokens(10_000)]
    before = guarded.process.metric("weir_requests_refused_total", 'reason="TOKEN_INVALID"')
    credentials = grpc.ssl_channel_credentials(guarded.authority.file.read_bytes())

    async def by_grpc(some: list[str]) -> Counter[grpc.StatusCode]:
        async with grpc.aio.secure_channel(guarded.process.target, credentials) as channel:
            method: Any = channel.unary_unary("/weir.retrieval.v1.RetrievalService/Retrieve")

            async def code_of(token: str) -> grpc.StatusCode:
                try:
                    await method(b"", metadata=[("authorization", f"Bearer {token}")], timeout=20)
                except grpc.aio.AioRpcError as error:
                    return error.code()
                return grpc.StatusCode.OK

            codes = Counter[grpc.StatusCode]()
            for start in range(0, len(some), 16):
                codes.update(await asyncio.gather(*map(code_of, some[start : start + 16])))
            return codes

    def by_http(some: list[str]) -> Counter[int]:
        codes, where = Counter[int](), guarded.process.said(r"HTTPS on (\S+),").group(1)
        with closing(http.client.HTTPSConnection(where, timeout=20, context=guarded.context)) as connection:
            for token in some:
                connection.request("GET", "/v1/info", headers={"Authorization": f"Bearer {token}"})
                answer = connection.getresponse()
                answer.read()
                codes[answer.status] += 1
        return codes

    with ThreadPoolExecutor(2) as pool, guarded.client(guarded.issuer.token(sub="neighbour", scope="read")) as client:
        over_grpc, over_http = pool.submit(asyncio.run, by_grpc(tokens[::2])), pool.submit(by_http, tokens[1::2])
        answered = 0
        while not (over_grpc.done() and over_http.done()):
            assert len(client.retrieve(QUERY).hits[0].item_ids) == 5
            answered += 1
            time.sleep(0.02)
        assert over_grpc.result() == {grpc.StatusCode.UNAUTHENTICATED: 5_000}
        assert over_http.result() == {401: 5_000}
    assert answered > 20
    assert guarded.process.metric("weir_requests_refused_total", 'reason="TOKEN_INVALID"') == before + 10_000


def test_nothing_secret_is_told(guarded: Guarded) -> None:
    """Tokens, whole or in part, are in no log, metric or error; nor are keys. Who calls is in the access log only."""
    tokens = [
        guarded.issuer.token(sub="unmistakable-caller"),
        guarded.issuer.token(sub="unmistakable-caller", exp=1),
        FORGER.token(sub="unmistakable-caller"),
        "unmistakable.nonsense",
    ]
    told = ""
    for token in tokens:
        told += str(guarded.rpc("Embed", pb.EmbedRequest(), f"Bearer {token}"))
        told += str(guarded.http("/v1/info", None, f"Bearer {token}"))
    # Headers that are broken on their way: gRPC and aiohttp would log them.
    for spoilt in (b"\xff", b"\x01", b"x" * 12_000):
        told += str(guarded.bytes_over_grpc(b"Bearer unmistakable" + spoilt))
        told += str(guarded.bytes_over_http(b"Bearer unmistakable" + spoilt))
    port = guarded.process.said(r"metrics on port (\d+)").group(1)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        told += answer.read().decode()
    told += "".join(guarded.process.lines) + guarded.access_log.replace('"token unmistakable-caller"', "")
    for secret in ("unmistakable", "PRIVATE KEY", *(part for token in tokens[:3] for part in token.split("."))):
        assert secret not in told


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_process_that_closes_clients_with_a_token_goes_on(guarded: Guarded, kind: str) -> None:
    config = guarded.process.client
    assert config is not None
    command = [sys.executable, "-m", closing_clients.__name__, kind, guarded.process.target, config.model_dump_json()]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr


def test_only_certificates_of_the_authority_count(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    store = Store(str(tmp_path / "store"))
    write_bundle(store, "v1", Catalogue.random())
    auth = {"allow": [{"certificates": ["CN:tester"]}, {"certificates": ["CN:shop"], "to": ["GetInfo"]}]}
    tls = authority.files("server") | {"client_ca_file": str(authority.file)}

    def config(pair: dict[str, str]) -> ClientConfig:
        return ClientConfig.model_validate({"tls": True, "ca_file": authority.file, **pair})

    tester = config(authority.files("tester"))
    with ServerProcess(store, client=tester, tls=tls, auth=auth, http_port=0) as server:
        server.serving("v1")
        with RetrievalClient(server.target, 10, config(authority.files("shop"))) as shop:
            assert shop.info().bundle_version == "v1"
            assert refused(lambda: shop.retrieve(QUERY)) == DENIED
        # The compiled front tells Python's server by a header who calls; nobody else can.
        name, stolen = "x-weir-client-certificate-bin", ssl.PEM_cert_to_DER_cert(authority.pair("tester")[0].decode())
        credentials = credentials_of(config(authority.files("shop")), None)
        with grpc.secure_channel(server.target, credentials) as channel:
            stub = retrieval_pb2_grpc.RetrievalServiceStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                stub.Retrieve(pb.RetrieveRequest(queries=QUERY), metadata=((name, stolen),), timeout=10)
        assert caught.value.code() == DENIED[0]
        for pair in ({}, other.files("tester2")):
            with RetrievalClient(server.target, 3, config(pair)) as stranger:
                assert refused(stranger.info)[0] in {
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                }
        url = "https://" + server.said(r"HTTPS on (\S+),").group(1) + "/v1/info"
        for name, wanted in (("tester", 200), ("shop", 200), ("unknown", 403)):
            context = ssl.create_default_context(cafile=str(authority.file))
            pair = authority.files(name)
            context.load_cert_chain(pair["certificate_file"], pair["key_file"])
            try:
                status = urllib.request.urlopen(url, timeout=10, context=context).status
            except urllib.error.HTTPError as error:
                status = error.code
            assert status == wanted
        context = ssl.create_default_context(cafile=str(authority.file))
        with pytest.raises(OSError, match=r"(?i)certificate|closed|reset|eof"):
            urllib.request.urlopen(url, timeout=10, context=context)


def test_a_certificate_that_rotates_under_load_loses_no_call(tmp_path: Path) -> None:
    authority, later = Authority(tmp_path), Authority(tmp_path, "later")
    store = Store(str(tmp_path / "store"))
    write_bundle(store, "v1", Catalogue.random())
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.file.read_bytes() + later.file.read_bytes())
    pair = authority.files("server")
    client = ClientConfig.model_validate({"tls": True, "ca_file": trusted, **authority.files("client")})
    tls = pair | {"client_ca_file": str(trusted)}
    # Connections end often, so that many handshakes happen while the files change.
    with ServerProcess(store, client=client, tls=tls, max_connection_age_seconds=0.5) as server:
        server.serving("v1")
        stop, failed, answered = threading.Event(), list[Exception](), [0]

        def call() -> None:
            with RetrievalClient(server.target, 20, client) as asking:
                while not stop.is_set():
                    try:
                        asking.retrieve(QUERY)
                        answered[0] += 1
                    except RetrievalError as error:
                        failed.append(error)

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(6):
                signer = later if number % 2 == 0 else authority
                # One after the other, as a careless script would; the client's files too.
                for mine in (tls, client.model_dump(include={"certificate_file", "key_file"})):
                    fresh = zip(("certificate_file", "key_file"), signer.pair(f"renewed-{number}"), strict=True)
                    for name, data in fresh:
                        Path(mine[name]).write_bytes(data)
                        time.sleep(0.4)
            served = ssl.get_server_certificate(("127.0.0.1", int(server.target.rpartition(":")[2])))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not failed
        assert answered[0] > 50
        assert ssl.PEM_cert_to_DER_cert(served) == ssl.PEM_cert_to_DER_cert(Path(pair["certificate_file"]).read_text())


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
