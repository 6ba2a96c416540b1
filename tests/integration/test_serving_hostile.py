"""Hostile clients beside good ones: the short form of `tests.integration.hostile`, against a real server process.

Bounds are wide, as the machine may be busy; a server without defences misses them by far (docs/campaigns.md).
"""

import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from tests.integration import hostile, odd_filters
from tests.integration.hostile import Aim, forgeries
from tests.serving.authority import Authority
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.access_config import ClientConfig
from weir.serving.client import RetrievalClient, RetrievalError, by_history


@pytest.fixture(scope="module", params=["plain", "tls"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    store = Store(str(folder / "store"))
    write_bundle(store, "v1", Catalogue.random(items=odd_filters.ITEMS, dimension=32), index="IVF64,Flat")
    with hostile.served(store, folder, secured=request.param == "tls") as process:
        process.serving("v1")
        yield process


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that answers over HTTP, too."""
    store = Store(str(tmp_path_factory.mktemp("gateway")))
    write_bundle(store, "v1", Catalogue.random(items=20_000, dimension=32), index="IVF64,Flat")
    with ServerProcess(store, http_port=0) as process:
        process.serving("v1")
        yield process


@pytest.mark.parametrize("attack", hostile.ATTACKS)
def test_good_calls_go_on(server: ServerProcess, attack: str) -> None:
    found = hostile.measured(server, attack, seconds=3)
    assert found.failed == 0
    assert found.answered > 20
    assert found.median < 300
    assert server.process.poll() is None
    assert "Traceback" not in "".join(server.lines)


def test_odd_filters_are_answered_or_refused_properly(server: ServerProcess) -> None:
    """Ten thousand of them, eight under way: nothing but answers and refusals that say what is wrong."""
    codes, _ = hostile.odd_calls(hostile.Aim(server.target, server.client or ClientConfig()), 10_000, 8)
    assert set(codes) <= {"OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION"}, codes
    assert codes["OK"] > 1000
    assert codes["INVALID_ARGUMENT"] > 1000
    with RetrievalClient(server.target, config=server.client) as client:
        spread = client.retrieve(hostile.GOOD, any_tags=["half"], max_per_tag=1, tag_prefix="tag-").hits[0]
        assert len(spread.item_ids) == 10
    assert "Traceback" not in "".join(server.lines)


def test_memory_stays_bounded_through_all_of_it(server: ServerProcess) -> None:
    assert server.metric("process_resident_memory_bytes") < 900 << 20


def test_connections_are_capped_and_those_open_are_not_touched(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    write_bundle(store, "v1", Catalogue.random())
    with (
        ServerProcess(store, max_connections=50) as process,
        RetrievalClient(process.target, timeout=5) as client,
    ):
        process.serving("v1")
        client.retrieve(hostile.GOOD)
        with hostile.under("idle", hostile.Aim(process.target), 30):
            ends = time.monotonic() + 3
            while time.monotonic() < ends:
                client.retrieve(hostile.GOOD)
            assert process.metric("process_open_fds") < 50 + 100
        # Room comes back with those who leave.
        time.sleep(0.5)
        with RetrievalClient(process.target, timeout=10) as late:
            late.retrieve(hostile.GOOD)


@pytest.mark.parametrize("method", ["Retrieve", "Embed", "GetInfo"])
def test_a_cancelled_call_leaves_no_traceback(server: ServerProcess, method: str) -> None:
    asked = hostile.GOOD * 200
    requests = {"Retrieve": pb.RetrieveRequest(queries=asked), "Embed": pb.EmbedRequest(queries=asked)}
    request = requests[method].SerializeToString() if method in requests else b""
    with closing(hostile.Aim(server.target, server.client or ClientConfig()).channel()) as channel:
        call = channel.open().unary_unary(hostile.METHOD.replace("Retrieve", method))
        for number in range(200):
            under_way = call.future(request, timeout=0.004 if number % 3 else None)
            time.sleep(0.001 * (number % 10))
            under_way.cancel()
    _goes_on_in_silence(server)


@pytest.mark.parametrize("part", [1.0, 0.5], ids=["an answer awaited", "half a request sent"])
@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
def test_a_caller_over_http_who_leaves_leaves_no_traceback(gateway: ServerProcess, part: float, reset: bool) -> None:
    query = {"history": {"itemIds": ["item-1"] * 50}, "k": 1000}
    body = json.dumps({"queries": [query] * 64, "params": {"exact": True}})
    address = gateway.said(r"HTTP on (127\.0\.0\.1:\d+)").group(1)
    head = f"POST /v1/retrieve HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
    whole = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    before = gateway.metric("grpc_server_handled_total", 'grpc_code="Canceled"')
    for number in range(20):
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as caller:
            if reset:
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            caller.sendall(whole[: int(part * len(whole))])
            time.sleep(0.01 * (number % 5))
    _goes_on_in_silence(gateway)
    while gateway.metric("grpc_server_handled_total", 'grpc_code="Canceled"') == before:
        time.sleep(0.05)
    assert gateway.metric("grpc_server_handled_total", 'grpc_code="Unknown"') == 0


def _goes_on_in_silence(server: ServerProcess) -> None:
    with RetrievalClient(server.target, config=server.client, timeout=60) as client:
        client.retrieve(hostile.GOOD)
    assert "Traceback" not in "".join(server.lines)


def test_cheap_calls_pass_expensive_ones(server: ServerProcess) -> None:
    dear = [by_history([f"item-{number}" for number in range(50)], 1000)] * 256
    with RetrievalClient(server.target, 60, server.client) as client, ThreadPoolExecutor(1) as pool:
        client.retrieve(hostile.GOOD)
        start = time.monotonic()
        whole = pool.submit(client.retrieve, dear, exact=True, exclude_seen=True)
        answered = 0
        while not whole.done():
            client.retrieve(hostile.GOOD)
            answered += 1
        assert len(whole.result().hits) == 256
        assert answered >= 5, f"{answered} calls in {time.monotonic() - start:.2f} s"


def test_what_is_too_dear_is_refused_with_the_way_out(server: ServerProcess) -> None:
    with RetrievalClient(server.target, config=server.client) as client:
        dear = by_history(["item-1"] * 100, 1000)
        excluded = [f"item-{number}" for number in range(1000)]
        assert client.info().limits["max_cost"] == 500_000
        with pytest.raises(RetrievalError) as refusal:
            client.retrieve([dear] * 256, excluded_item_ids=excluded, nprobe=64)
        assert refusal.value.code == grpc.StatusCode.INVALID_ARGUMENT
        [advised] = re.findall(r"send at most (\d+) such queries", str(refusal.value))
        answer = client.retrieve([dear] * int(advised), excluded_item_ids=excluded, nprobe=64)
        assert len(answer.hits) == int(advised)


@pytest.mark.parametrize("secure", [False, True])
def test_no_caller_writes_into_the_log(tmp_path: Path, secure: bool) -> None:
    store = Store(str(tmp_path / "store"))
    write_bundle(store, "v1", Catalogue.random())
    authority = Authority(tmp_path)
    client = ClientConfig(tls=True, ca_file=authority.file) if secure else ClientConfig()
    text = b"\n2026-11-30 weir.serving.server: ready: forged\n"
    with ServerProcess(store, client=client, tls=authority.files("server") if secure else {}) as server:
        server.serving("v1")
        aim, lines = Aim(server.target, client), list(server.lines)
        for sent in forgeries(aim, text):
            for opened in (aim.speaking, aim.connected):
                with opened() as connection, contextlib.suppress(OSError):
                    connection.sendall(sent)
                    connection.settimeout(0.05)
                    while connection.recv(65536):
                        pass
        with RetrievalClient(server.target, config=client) as good:
            assert good.info().bundle_version == "v1"
        assert server.lines == lines


@pytest.mark.parametrize("chosen", [None, "DEBUG"])
def test_who_wants_the_log_of_grpc_says_so(chosen: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    environment |= {} if chosen is None else {"GRPC_VERBOSITY": chosen}
    script = "import sys, serving; assert 'grpc' not in sys.modules; import os; print(os.environ['GRPC_VERBOSITY'])"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (chosen or "NONE")
