"""Several processes answer on one port: one of them may die, none is left behind, and all are one server outside."""

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.ports import free_port
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import BundleLog, Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.access_config import TlsConfig
from weir.serving.client import RetrievalClient, by_history, by_item

STATUS = health_pb2.HealthCheckResponse
SERVICE = "weir.retrieval.v1.RetrievalService"
CONNECTIONS = 24
"""Of so many, the kernel gives each of two processes some."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def catalogue() -> Catalogue:
    return Catalogue.random()


def children(server: ServerProcess) -> list[int]:
    pid = server.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def soon(holds: Callable[[], bool], within: float = 30) -> None:
    ends = time.monotonic() + within
    while not holds():
        assert time.monotonic() < ends, f"not within {within} s"
        time.sleep(0.05)


@contextmanager
def connections(target: str) -> Iterator[list[grpc.Channel]]:
    """Open connections of their own: channels to one address would share one."""
    with ExitStack() as stack:
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
        yield [stack.enter_context(grpc.insecure_channel(target, options)) for _ in range(CONNECTIONS)]


def versions(channels: list[grpc.Channel], timeout: float = 10) -> list[str | None]:
    """Return the version that answers each connection, None where there is no answer in time."""

    def ask(channel: grpc.Channel) -> str | None:
        stub = retrieval_pb2_grpc.RetrievalServiceStub(channel)
        try:
            return str(stub.GetInfo(pb.GetInfoRequest(), timeout=timeout).bundle_version)
        except grpc.RpcError:
            return None

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return list(pool.map(ask, channels))


def statuses(channels: list[grpc.Channel]) -> set[int]:
    request = health_pb2.HealthCheckRequest(service=SERVICE)
    return {int(health_pb2_grpc.HealthStub(one).Check(request, timeout=10).status) for one in channels}


class Load:
    """Asks on connections that come and go, and notes what fails."""

    def __init__(self, target: str, done: threading.Event) -> None:
        self.target, self.done, self.answers = target, done, 0

    def __call__(self) -> None:
        while not self.done.is_set():
            with RetrievalClient(self.target) as client:
                for _ in range(10):
                    assert len(client.retrieve([by_item("item-3", 5)]).hits[0].item_ids) == 5
                    self.answers += 1


def test_all_processes_answer_and_all_are_ready_at_once(store: Store, catalogue: Catalogue) -> None:
    with ServerProcess(store, processes=2) as server:
        server.said("2 processes listen")
        with connections(server.target) as channels:
            assert statuses(channels) == {STATUS.NOT_SERVING}
            write_bundle(store, "v1", catalogue)
            soon(lambda: statuses(channels) == {STATUS.SERVING})
            assert versions(channels) == ["v1"] * CONNECTIONS
            # Without one of them, its connections get no answer, and those of the other do.
            os.kill(children(server)[0], signal.SIGSTOP)
            answers = versions(channels, timeout=2)
            os.kill(children(server)[0], signal.SIGCONT)
            assert set(answers) == {"v1", None}
            write_bundle(store, "v2", Catalogue.random(seed=1))
            server.said("serving bundle v2")
            # Whoever asks from now on gets the new version, whichever process answers.
            assert versions(channels) == ["v2"] * CONNECTIONS
            BundleLog(store).promote("v1")
            soon(lambda: versions(channels) == ["v1"] * CONNECTIONS)


def test_one_port_has_the_metrics_of_all(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    with ServerProcess(store, processes=2) as server:
        server.serving("v1")
        before = server.metric("grpc_server_handled_total", 'grpc_method="GetInfo"')
        with connections(server.target) as channels:
            versions(channels)
        assert server.metric("grpc_server_handled_total", 'grpc_method="GetInfo"') == before + CONNECTIONS
        assert server.metric("weir_server_processes") == 2
        assert server.metric("weir_bundle_swaps_total") == 1
        assert server.metric("weir_index_items") == 200
        assert server.metric("weir_bundle_served_info", 'version="v1"') == 1
        assert server.metric("process_cpu_seconds_total") > 0
        assert server.metric("process_resident_memory_bytes") > 100 << 20


def test_a_process_that_is_killed_is_started_again_and_no_call_fails(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    with ServerProcess(store, processes=2) as server:
        server.serving("v1")
        done = threading.Event()
        loads = [Load(server.target, done) for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(load) for load in loads]
            try:
                for number in range(1, 3):
                    before = children(server)
                    os.kill(before[-1], signal.SIGKILL)
                    server.said(rf"process \d ended with status -{signal.SIGKILL:d}; it is started again")
                    soon(lambda number=number: server.metric("weir_server_process_restarts_total") == number)  # type: ignore[misc]
                    soon(lambda: server.metric("weir_server_processes") == 2)
                    assert before[0] in children(server)
                    assert before[-1] not in children(server)
                counted = server.metric("grpc_server_handled_total", 'grpc_code="OK"', 'grpc_method="Retrieve"')
                write_bundle(store, "v2", Catalogue.random(seed=1))
                server.said("serving bundle v2")
            finally:
                done.set()
        for load in running:
            load.result()  # a call that failed would raise here
        with connections(server.target) as channels:
            assert versions(channels) == ["v2"] * CONNECTIONS
        # What the dead ones had counted is still there.
        now = server.metric("grpc_server_handled_total", 'grpc_code="OK"', 'grpc_method="Retrieve"')
        assert now >= counted > 0


def test_sigterm_drains_all_of_them(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    with ServerProcess(store, processes=2, drain_seconds=1.5, grace_seconds=5) as server:
        server.serving("v1")
        processes = children(server)
        with connections(server.target) as channels, ThreadPoolExecutor(1) as pool:
            versions(channels)
            ended = pool.submit(server.terminate)
            soon(lambda: statuses(channels) == {STATUS.NOT_SERVING}, within=10)
            assert versions(channels) == ["v1"] * CONNECTIONS
            assert ended.result() == 0
        assert all(gone(pid) for pid in processes)
        assert not [line for line in server.lines if "Traceback" in line or "ended with status" in line]


def test_none_is_left_when_the_parent_is_killed(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    with ServerProcess(store, processes=2) as server:
        server.serving("v1")
        processes = children(server)
        server.process.kill()
        soon(lambda: all(gone(pid) for pid in processes))


def test_a_second_server_on_the_port_is_refused(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    port = free_port()
    with ServerProcess(store, processes=2, port=port) as server:
        server.serving("v1")
        with ServerProcess(store, processes=2, port=port) as second:
            assert second.process.wait(30) != 0
            soon(lambda: f"serving.port on host '127.0.0.1', port {port}" in "".join(second.lines))
        with RetrievalClient(server.target) as client:
            assert client.info().bundle_version == "v1"


def test_a_process_that_cannot_start_ends_the_server(store: Store, tmp_path: Path) -> None:
    missing = TlsConfig(certificate_file=tmp_path / "none.crt", key_file=tmp_path / "none.key")
    with ServerProcess(store, processes=2, tls=missing) as server:
        assert server.process.wait(30) != 0
        soon(lambda: "before the server was up" in "".join(server.lines))
        assert "none.crt" in "".join(server.lines)


def test_http_and_probes_are_shared_too(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    with ServerProcess(store, processes=2, http_port=0, health_port=0) as server:
        server.serving("v1")
        http = server.said(r"HTTP on (127\.0\.0\.1:\d+)").group(1)
        probes = server.said(r"health on (127\.0\.0\.1:\d+)").group(1)
        for _ in range(CONNECTIONS):
            with urllib.request.urlopen(f"http://{http}/v1/info", timeout=10) as answer:
                assert json.load(answer)["bundleVersion"] == "v1"
        with connections(probes) as channels:
            assert statuses(channels) == {STATUS.SERVING}


def test_answers_are_those_of_one_process(store: Store) -> None:
    made = Catalogue.random(items=500, dimension=16, seed=4)
    write_bundle(store, "v1", made, index="IVF8,SQfp16", parameters={"nprobe": 3})
    questions = [by_history([made.ids[number], made.ids[number + 7]], 20) for number in range(0, 400, 9)]

    def answers(processes: int) -> list[list[str]]:
        with ServerProcess(store, processes=processes) as server, RetrievalClient(server.target) as client:
            server.serving("v1")
            return [list(client.retrieve([question]).hits[0].item_ids) for question in questions]

    assert answers(2) == answers(1)
