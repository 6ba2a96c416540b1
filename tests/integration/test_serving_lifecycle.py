"""A server's life: before the first bundle, overload, new events, SIGTERM."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle, write_window
from tests.serving.users import Event
from weir.contracts import Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.client import RetrievalClient, RetrievalError, by_history, by_user

STATUS = health_pb2.HealthCheckResponse
SERVICE = "weir.retrieval.v1.RetrievalService"
LIVENESS, HISTORIES = "liveness", "histories"
T = 1_700_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def catalogue() -> Catalogue:
    return Catalogue.random()


def health(target: str, service: str = SERVICE) -> int:
    with grpc.insecure_channel(target) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=10).status)


def services(target: str) -> list[str]:
    with grpc.insecure_channel(target) as channel:
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        [answer] = stub.ServerReflectionInfo(iter([request]), timeout=10)
        return [service.name for service in answer.list_services_response.service]


def test_it_serves_from_the_first_bundle_on(store: Store, catalogue: Catalogue) -> None:
    with ServerProcess(store) as server, RetrievalClient(server.target, timeout=5) as client:
        assert [health(server.target, name) for name in ("", SERVICE)] == [STATUS.NOT_SERVING] * 2
        assert health(server.target, LIVENESS) == STATUS.SERVING
        with pytest.raises(RetrievalError) as refusal:
            client.retrieve([by_user("ann")])
        assert (refusal.value.code, refusal.value.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_BUNDLE")
        write_bundle(store, "v1", catalogue)
        server.said("ready")
        assert [health(server.target, name) for name in ("", SERVICE)] == [STATUS.SERVING] * 2
        assert client.retrieve([by_user("ann")]).hits[0].fallback


def test_while_it_reads_the_promoted_bundle_its_errors_say_so(
    store: Store, catalogue: Catalogue, tmp_path: Path
) -> None:
    """One file of the bundle is a pipe: reading it lasts until somebody writes."""
    write_bundle(store, "v1", catalogue)
    file, pipe = tmp_path / "store/bundles/v1/items.parquet", tmp_path / "pipe"
    data = file.read_bytes()
    file.unlink()
    os.mkfifo(file)
    pipe.hardlink_to(file)
    with ServerProcess(store) as server, grpc.insecure_channel(server.target) as channel:
        for method in ("Retrieve", "GetInfo"):
            ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/{method}")
            while (found := refusal(ask))["metadata"] != {"promoted_version": "v1"}:
                assert found == {"reason": "NO_BUNDLE", "metadata": {}, "is_reading": False}
                time.sleep(0.02)
            assert found == {"reason": "NO_BUNDLE", "metadata": {"promoted_version": "v1"}, "is_reading": True}
        assert health(server.target) == STATUS.NOT_SERVING
        whole = file.with_suffix(".whole")
        whole.write_bytes(data)
        whole.rename(file)
        with suppress(BrokenPipeError):  # it opens the pipe to let the server go on, which then may want nothing of it
            pipe.write_bytes(data)
        server.serving("v1")


@pytest.mark.parametrize("name", ["port", "http_port", "health_port", "metrics_port"])
def test_a_port_that_is_taken_is_named_and_ends_it(store: Store, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        ports = {"port": 0, "http_port": 0, "health_port": 0, "metrics_port": 0} | {name: number}
        settings = [f"--set=serving.{key}={port}" for key, port in ports.items()]
        command = [sys.executable, "-m", "weir", "serve", "--store", store.url, *settings]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    *_, said = done.stderr.splitlines()
    assert str(number) in said
    assert "stop the process that holds the port" in said
    assert "Traceback" not in done.stderr


def refusal(ask: "grpc.UnaryUnaryMultiCallable[bytes, bytes]") -> dict[str, object]:
    """Return what an error tells programs, and whether it tells people that the bundle is being read."""
    with pytest.raises(grpc.RpcError) as failure:
        ask(b"")
    status = rpc_status.from_call(failure.value)
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return {
        "reason": info.reason,
        "metadata": dict(info.metadata),
        "is_reading": "no bundle is loaded: it is reading v1; the server answers once it has read" in status.message,
    }


@pytest.mark.parametrize("processes", [1, 2])
def test_a_click_changes_the_answer(store: Store, catalogue: Catalogue, processes: int) -> None:
    write_bundle(store, "v1", catalogue)
    write_window(store, 0, [Event("ann", "item-1", T)])
    with ServerProcess(store, processes=processes) as server, RetrievalClient(server.target) as client:
        server.serving("v1")
        assert client.retrieve([by_user("ann")]).hits[0].item_ids == catalogue.top(catalogue.user(["item-1"]), 10)
        write_window(store, 1, [Event("ann", "item-2", T + 1)])
        while server.metric("weir_history_sequence") != 1:
            time.sleep(0.05)
        hits = client.retrieve([by_user("ann", 10)], exclude_seen=True).hits[0]
        seen = ["item-1", "item-2"]
        assert hits.item_ids == catalogue.top(catalogue.user(seen), 10, seen)


def test_a_restarted_server_knows_users_before_it_is_ready(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    for sequence in range(5):
        write_window(store, sequence, [Event("ann", f"item-{sequence}", T + sequence)])
    with ServerProcess(store) as server, RetrievalClient(server.target) as client:
        server.said("ready")
        hits = client.retrieve([by_user("ann", 5)]).hits[0]
        assert hits.item_ids == catalogue.top(catalogue.user([f"item-{i}" for i in range(1, 5)]), 5)


def test_overload_is_refused_at_once_and_passes(store: Store) -> None:
    write_bundle(store, "v1", Catalogue.random(items=20_000, dimension=32))
    with ServerProcess(store, queue_queries=1, max_batch_queries=1, retry_after_seconds=0.75) as server:
        server.serving("v1")
        with RetrievalClient(server.target) as client, ThreadPoolExecutor(24) as pool:
            start = threading.Barrier(24)

            def ask() -> RetrievalError | None:
                start.wait()
                try:
                    client.retrieve([by_history(["item-1"], 100)] * 32)
                except RetrievalError as error:
                    return error
                return None

            outcomes = [future.result() for future in [pool.submit(ask) for _ in range(24)]]
            refused = [error for error in outcomes if error is not None]
            assert {(error.code, error.reason, error.retry_after) for error in refused} == {
                (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", 0.75)
            }
            assert 0 < len(refused) < 24
            assert len(client.retrieve([by_history(["item-1"], 5)]).hits[0].item_ids) == 5
        assert server.metric("weir_requests_refused_total", 'reason="QUEUE_FULL"') == len(refused)
        assert server.metric("grpc_server_handled_total", 'grpc_code="ResourceExhausted"') == len(refused)


def test_calls_that_wait_unread_beyond_the_bound_are_cancelled_and_the_others_answered(store: Store) -> None:
    write_bundle(store, "v1", Catalogue.random())
    with ServerProcess(store, queue_calls=4) as server:
        server.serving("v1")
        with grpc.insecure_channel(server.target) as channel:
            stub = retrieval_pb2_grpc.RetrievalServiceStub(channel)
            # With parameters, so that a compiled front passes it on to the queue in question.
            params = pb.SearchParams(exact=True)
            ask = pb.RetrieveRequest(queries=[pb.Query(item_id="item-1", k=5)], params=params)
            stub.Retrieve(ask)
            os.kill(server.process.pid, signal.SIGSTOP)
            calls = [stub.Retrieve.future(ask, timeout=30) for _ in range(200)]
            time.sleep(0.5)
            os.kill(server.process.pid, signal.SIGCONT)
            codes = [call.code() for call in calls]
            assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED}
            assert codes.count(grpc.StatusCode.OK) >= 4
            assert len(stub.Retrieve(ask).hits[0].item_ids) == 5


def test_sigterm_drains(store: Store, catalogue: Catalogue) -> None:
    write_bundle(store, "v1", catalogue)
    with ServerProcess(store, drain_seconds=0.7, grace_seconds=5) as server:
        server.serving("v1")
        with RetrievalClient(server.target) as client, ThreadPoolExecutor(1) as pool:
            ended = pool.submit(server.terminate)
            server.said("draining")
            assert health(server.target) == STATUS.NOT_SERVING
            # Load balancers need a while to notice: until then requests are still answered.
            assert len(client.retrieve([by_history(["item-1"], 5)]).hits[0].item_ids) == 5
            assert ended.result() == 0
        server.said("stopped")


def test_a_call_that_never_reaches_a_handler_does_not_hold_up_the_end(store: Store, catalogue: Catalogue) -> None:
    """gRPC sometimes accepts a call in a server's last moment and hands it to nobody; here its message never comes."""
    write_bundle(store, "v1", catalogue)
    with ServerProcess(store, drain_seconds=0.1, grace_seconds=60) as server:
        server.serving("v1")
        never = threading.Event()

        def no_message() -> Iterator[bytes]:
            never.wait()
            yield from ()

        with grpc.insecure_channel(server.target) as channel:
            retrieve = channel.stream_unary(f"/{SERVICE}/Retrieve")
            call = retrieve.future(no_message())
            time.sleep(0.3)
            assert not call.done()
            assert server.terminate() == 0
            assert call.code() in {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
            never.set()


@pytest.mark.parametrize("on", [True, False])
def test_reflection_can_be_switched(store: Store, on: bool) -> None:
    with ServerProcess(store, reflection=on) as server:
        if on:
            assert SERVICE in services(server.target)
        else:
            with pytest.raises(grpc.RpcError) as refusal:
                services(server.target)
            assert refusal.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert server.terminate() == 0
