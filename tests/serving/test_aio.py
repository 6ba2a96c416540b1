"""The client for asyncio against real servers: it answers as the other one, and keeps its promises under load."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.serving.authority import AUDIENCE, ISSUER, Authority, Issuer
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.serving.access_config import ClientConfig
from weir.serving.aio import AsyncRetrievalClient
from weir.serving.client import RetrievalClient, RetrievalError, by_embedding, by_history, by_item, by_user

CATALOGUE = Catalogue.random()
QUERIES = [
    by_user("who", 2),
    by_history(["item-1", "what"], 3),
    by_item("item-2", 4),
    by_embedding(CATALOGUE.vectors[3]),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Start a server with TLS and tokens."""
    folder: Path = tmp_path_factory.mktemp("server")
    authority, issuer, token = Authority(folder), Issuer(), folder / "token"
    token.write_text(issuer.token())
    auth = {"jwks": issuer.publish(folder / "jwks.json"), "issuer": ISSUER, "audience": AUDIENCE}
    client = ClientConfig(tls=True, ca_file=authority.file, token_file=token)
    store = Store(str(folder / "store"))
    write_bundle(store, "v1", CATALOGUE)
    with ServerProcess(store, client=client, tls=authority.files("server"), auth=auth) as process:
        process.serving("v1")
        yield process


def test_it_answers_as_the_other_client_through_tls_and_with_a_token(server: ServerProcess) -> None:
    wishes = {"exact": True, "score_threshold": -1.0, "excluded_item_ids": ["item-9"], "bundle_version": "v1"}

    async def asked() -> tuple[object, ...]:
        async with AsyncRetrievalClient(server.target, config=server.client) as client:
            answers = client.retrieve(QUERIES, **wishes), client.embed(QUERIES), client.info()  # type: ignore[arg-type]
            return tuple(await asyncio.gather(*answers))

    found, vectors, info = asyncio.run(asked())
    with RetrievalClient(server.target, config=server.client) as client:
        wanted = client.retrieve(QUERIES, **wishes)  # type: ignore[arg-type]
        assert info == client.info()
        for one, other in zip(vectors, client.embed(QUERIES), strict=True):  # type: ignore[call-overload]
            assert (one is None) == (other is None)
            np.testing.assert_array_equal(one, other)
    for one, other in zip(found.hits, wanted.hits, strict=True):  # type: ignore[attr-defined]
        assert (one.item_ids, one.fallback, one.complete) == (other.item_ids, other.fallback, other.complete)
        np.testing.assert_array_equal(one.scores, other.scores)
    assert [len(hits.item_ids) for hits in wanted.hits] == [2, 3, 4, 10]


def test_a_refusal_carries_what_the_other_client_carries(server: ServerProcess) -> None:
    async def asked() -> None:
        async with AsyncRetrievalClient(server.target, config=server.client) as client:
            await client.retrieve([by_user("", 0)])

    with pytest.raises(RetrievalError) as refusal:
        asyncio.run(asked())
    assert (refusal.value.code, refusal.value.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert set(refusal.value.violations) == {"queries[0].user_id", "queries[0].k"}


def test_a_deadline_ends_a_call_and_no_other(server: ServerProcess) -> None:
    """Of two calls at a time, the one whose deadline has passed fails."""

    async def asked() -> list[object]:
        async with AsyncRetrievalClient(server.target, 60, server.client) as client:
            await client.info()
            # Its answer takes longer than a busy client's timer may be late.
            dear = [by_history([f"item-{number}" for number in range(50)], 200)] * 256
            calls = client.retrieve(dear, exact=True, timeout=0.000001), client.retrieve(QUERIES)
            return await asyncio.gather(*calls, return_exceptions=True)

    late, answered = asyncio.run(asked())
    assert isinstance(late, RetrievalError)
    assert late.code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(answered.hits) == 4  # type: ignore[attr-defined]


def test_a_cancelled_call_is_cancelled_on_the_server(server: ServerProcess) -> None:
    dear = [by_history([f"item-{number}" for number in range(50)], 200)] * 256
    canceled = "grpc_server_handled_total", 'grpc_code="Canceled"'
    before = server.metric(*canceled)

    async def asked() -> None:
        async with AsyncRetrievalClient(server.target, 60, server.client) as client:
            calls = [asyncio.create_task(client.retrieve(dear, exact=True)) for _ in range(20)]
            await client.info()
            for call in calls:
                call.cancel()
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert any(isinstance(one, asyncio.CancelledError) for one in ended)

    asyncio.run(asked())
    ends = time.monotonic() + 20
    while server.metric(*canceled) == before:
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_it_needs_an_event_loop_and_to_be_open() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        AsyncRetrievalClient("127.0.0.1:9")

    async def closed() -> None:
        client = AsyncRetrievalClient("127.0.0.1:9")
        await client.close()
        await client.info()

    with pytest.raises(ValueError, match="this client is closed"):
        asyncio.run(closed())


def test_new_certificates_do_not_end_calls_under_way(server: ServerProcess) -> None:
    async def asked() -> None:
        async with AsyncRetrievalClient(server.target, 60, server.client) as client:
            calls = [asyncio.create_task(client.retrieve(QUERIES)) for _ in range(20)]
            await asyncio.sleep(0)
            channels = client._channel._channels
            channels._looked, channels._stamp = float("-inf"), ()
            first = await client.retrieve(QUERIES)
            for answer in await asyncio.gather(*calls):
                assert [hits.item_ids for hits in answer.hits] == [hits.item_ids for hits in first.hits]

    asyncio.run(asked())
