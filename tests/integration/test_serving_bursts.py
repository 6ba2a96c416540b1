"""A burst of one caller beyond its rate: each refused call says why, and how long to wait."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tests.integration import hostile, odd_filters
from tests.serving.authority import AUDIENCE, ISSUER, Authority, Issuer
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.access_config import ClientConfig

CALLS = 600
ASK = pb.RetrieveRequest(queries=[pb.Query(item_id="item-1", k=5)])


class Rated:
    """A server with a rate for each caller, and a token for it."""

    def __init__(self, folder: Path, rate: float, burst: int) -> None:
        issuer, authority = Issuer(), Authority(folder)
        self.store, self.token, file = Store(str(folder / "store")), issuer.token(), folder / "token"
        file.write_text(self.token)
        write_bundle(self.store, "v1", Catalogue.random(items=odd_filters.ITEMS, dimension=32), index="IVF64,Flat")
        jwks = issuer.publish(folder / "jwks.json")
        limits = {"calls_per_second": rate, "burst": burst}
        self.auth = {"jwks": jwks, "issuer": ISSUER, "audience": AUDIENCE, **limits}
        self.tls, self.client = (
            authority.files("server"),
            ClientConfig(tls=True, ca_file=authority.file, token_file=file),
        )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rated, ServerProcess]]:
    rated = Rated(tmp_path_factory.mktemp("rated"), 200, 100)
    with ServerProcess(rated.store, auth=rated.auth) as server:
        server.said("ready: ")
        yield rated, server


async def burst(target: str, token: str, connections: int) -> Counter[tuple[str, str, bool]]:
    """Call at once; count what calls end with: code, reason, and whether they are told how long to wait."""
    metadata = (("authorization", f"Bearer {token}"),)
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(target, options) for _ in range(connections)]
    stubs = [retrieval_pb2_grpc.RetrievalServiceStub(channel) for channel in channels]

    async def ended(stub: "retrieval_pb2_grpc.RetrievalServiceAsyncStub") -> tuple[str, str, bool]:
        try:
            await stub.Retrieve(ASK, metadata=metadata, timeout=30)
        except grpc.aio.AioRpcError as error:
            status = rpc_status.from_call(error)  # type: ignore[arg-type]  # it has what a call of the other kind has
            details = [] if status is None else status.details
            info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
            reason = next((info.reason for detail in details if detail.Unpack(info)), error.details() or "")
            return error.code().name, reason, any(detail.Unpack(retry) for detail in details)
        return "OK", "", False

    await asyncio.gather(*(channel.channel_ready() for channel in channels))
    found = await asyncio.gather(*(ended(stubs[number % connections]) for number in range(CALLS)))
    await asyncio.gather(*(channel.close() for channel in channels))
    return Counter(found)


@pytest.mark.parametrize("connections", [1, 3, 30])
def test_every_call_beyond_the_rate_is_told_so(plain: tuple[Rated, ServerProcess], connections: int) -> None:
    rated, server = plain
    found = asyncio.run(burst(server.target, rated.token, connections))
    answered = found.pop(("OK", "", False), 0)
    # A server that can do no more may say so instead.
    assert set(found) <= {("RESOURCE_EXHAUSTED", reason, True) for reason in ("CALL_RATE_EXCEEDED", "QUEUE_FULL")}
    assert found["RESOURCE_EXHAUSTED", "CALL_RATE_EXCEEDED", True] > 0
    assert 0 < answered < CALLS


@pytest.mark.parametrize("attack", ["rapid_reset", "violations", "forged"])
def test_good_calls_go_on_at_a_server_with_rates(tmp_path: Path, attack: str) -> None:
    """It keeps more calls unread than others, and resets no streams by itself."""
    rated = Rated(tmp_path, 1e6, 100_000)
    with ServerProcess(rated.store, client=rated.client, tls=rated.tls, auth=rated.auth) as server:
        server.serving("v1")
        found = hostile.measured(server, attack, seconds=3)
        assert found.failed == 0
        assert found.answered > 20
        assert found.median < 300
        assert "Traceback" not in "".join(server.lines)
