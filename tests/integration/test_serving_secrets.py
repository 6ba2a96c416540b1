"""Forged tokens and broken headers, by the thousand: each refused by name, and nothing secret told to anybody."""

import asyncio
import http.client
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import grpc
import pytest

from tests.integration import closing_clients, hostile
from tests.integration.guarded import QUERY, Guarded, guarded_server
from tests.serving.authority import Issuer
from weir.retrieval.v1 import retrieval_pb2 as pb

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
