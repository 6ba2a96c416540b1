"""Hosts of a real server: one spelling for all of its listeners, and one server on a port."""

import contextlib
import importlib.util
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
from weir.runtime.listening import in_url, listening
from weir.serving.client import RetrievalClient

WHERE = r"gRPC on (\S+), HTTP on (\S+), health on (\S+), metrics on "
METRICS = r"metrics on port (\d+) of (\S+)"


FRONTS = ["python", *(["native"] if importlib.util.find_spec("weir_front") else [])]

NAMED = """
import socket
resolve = socket.getaddrinfo
HOSTS = {"several.test": ["::1", "198.51.100.7", "127.0.0.1"], "held.test": ["127.0.0.3", "127.0.0.2"]}
socket.getaddrinfo = lambda host, *rest, **kind: [
    each for address in HOSTS.get(host, [host]) for each in resolve(address, *rest, **kind)
]
"""
"""Names that a process knows, as its resolver might: no machine has the second address of the first one."""


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


def served_under(store: Store, host: str, front: str, **ports: int) -> ServerProcess:
    process = ServerProcess(
        store, host=host, metrics_host=host, front=front, **{"http_port": 0, "health_port": 0, **ports}
    )
    process.imports = NAMED + process.imports
    return process


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("front", FRONTS)
def test_a_server_listens_on_all_addresses_of_a_name(store: Store, front: str) -> None:
    with served_under(store, "several.test", front) as server:
        server.said("ready: ")
        grpc_at, http, _ = (at.rpartition(":")[2] for at in server.said(WHERE).groups())
        metrics = server.said(METRICS).group(1)
        for host in ("127.0.0.1", "[::1]"):
            with RetrievalClient(f"{host}:{grpc_at}") as client:
                assert client.info().bundle_version == "v1"
            assert b"v1" in got(f"http://{host}:{http}/v1/info")
            assert b"weir_" in got(f"http://{host}:{metrics}/metrics")
        # gRPC, health, HTTP and metrics say each that an address is left out.
        assert "".join(server.lines).count("'several.test' has addresses that this machine has not") == 4
        assert server.terminate() == 0


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("name", ["port", "http_port", "health_port", "metrics_port"])
def test_a_port_that_is_held_on_one_address_of_a_name_refuses_the_start(store: Store, name: str, front: str) -> None:
    port = free_port()
    (holder,) = listening("a test", "127.0.0.2", port)
    with holder, served_under(store, "held.test", front, **{name: port}) as server:
        assert server.process.wait(60) == 1
    said = "".join(server.lines)
    assert "CannotListenError: Address already in use: " in said
    assert "ready: " not in said


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
