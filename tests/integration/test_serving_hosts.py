"""Hosts of a real server: one spelling for all of its listeners, and one server on a port."""

import contextlib
import socket
import time
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.ports import free_port
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.contracts.listening import in_url, listening
from weir.serving.client import RetrievalClient

WHERE = r"gRPC on (\S+), HTTP on (\S+), health on (\S+), metrics on "
METRICS = r"metrics on port (\d+) of (\S+)"


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path / "store"))
    write_bundle(store, "v1", Catalogue.random())
    return store


def got(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - http
        data: bytes = answer.read()
    return data


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "::"])
def test_every_listener_takes_every_spelling_of_a_host(store: Store, host: str, processes: int) -> None:
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    if processes > 1 and host == "localhost":
        pytest.skip("one of the names is enough")
    ports = {"http_port": 0, "health_port": 0, "processes": processes, "front": "python"}
    with ServerProcess(store, host=host, metrics_host=host, **ports) as server:
        server.said("ready")
        grpc_at, http, health = server.said(WHERE).groups()
        port, metrics = server.said(METRICS).groups()
        assert {metrics, *(at.rpartition(":")[0] for at in (grpc_at, http, health))} == {in_url(host)}
        with RetrievalClient(grpc_at) as client:
            assert client.info().bundle_version == "v1"
        assert b"v1" in got(f"http://{http}/v1/info")
        assert b"weir_" in got(f"http://{in_url(host)}:{port}/metrics")
        with grpc.insecure_channel(health) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("name", ["port", "http_port", "health_port", "metrics_port"])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_port_that_is_held_refuses_the_start_with_its_reason(store: Store, name: str, processes: int) -> None:
    port = free_port()
    (holder,) = listening("a test", "127.0.0.1", port)
    with holder, ServerProcess(store, **{name: port, "processes": processes, "front": "python"}) as server:
        assert server.process.wait(60) == 1
    said = "".join(server.lines)
    assert "CannotListenError: Address already in use: " in said
    assert f"port {port}" in said
    assert "ready: " not in said


@pytest.mark.parametrize("processes", [(1, 1), (2, 2), (1, 2)])
def test_of_two_servers_that_start_on_one_port_one_gets_ready(store: Store, processes: tuple[int, int]) -> None:
    port = free_port()
    with contextlib.ExitStack() as both:
        started = [
            both.enter_context(ServerProcess(store, host="127.0.0.1", port=port, processes=count, front="python"))
            for count in processes
        ]
        ends = time.monotonic() + 60
        while time.monotonic() < ends and all(server.process.poll() is None for server in started):
            time.sleep(0.05)
        refused = [server for server in started if server.process.poll() is not None]
        assert len(refused) == 1
        (served,) = (server for server in started if server.process.poll() is None)
        served.said("ready: ")
        assert "ready: " not in "".join(refused[0].lines)
        with RetrievalClient(served.target) as client:
            assert client.info().bundle_version == "v1"
