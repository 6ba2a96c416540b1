"""The pool, as a process of its own, and the end of its workers."""

import os
import queue
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2 as api
from apache_beam.portability.api import beam_fn_api_pb2_grpc, endpoints_pb2

from weir.up.ports import free_port


class Engine(beam_fn_api_pb2_grpc.BeamFnControlServicer):
    """Flink's end: it knows who has connected."""

    def __init__(self) -> None:
        self.workers: queue.Queue[str] = queue.Queue()
        self.ended: queue.Queue[str] = queue.Queue()

    def Control(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        name = str(dict(context.invocation_metadata())["worker_id"])
        context.add_callback(lambda: self.ended.put(name))
        self.workers.put(name)
        yield from (api.InstructionRequest() for _ in requests)


@contextmanager
def engine() -> Iterator[tuple[Engine, str]]:
    served, server = Engine(), grpc.server(ThreadPoolExecutor(4))
    beam_fn_api_pb2_grpc.add_BeamFnControlServicer_to_server(served, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield served, f"127.0.0.1:{port}"
    finally:
        server.stop(0)


@contextmanager
def pool(log: Path = Path(os.devnull)) -> Iterator[tuple["subprocess.Popen[bytes]", Any]]:
    address = f"127.0.0.1:{free_port()}"
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "weir.pipelines.stream.worker_pool", address], stderr=output)
    try:
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(60)
            yield process, beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
    finally:
        process.kill()
        process.wait()


def begin(stub: Any, control: str, name: str) -> None:
    endpoint = endpoints_pb2.ApiServiceDescriptor(url=control)
    answer = stub.StartWorker(api.StartWorkerRequest(worker_id=name, control_endpoint=endpoint))
    assert not answer.error


def children(pid: int) -> set[int]:
    """Return a process's descendants."""
    found, waiting = set[int](), [pid]
    while waiting:
        parent = waiting.pop()
        done = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False)
        new = {int(line) for line in done.stdout.split()} - found
        found |= new
        waiting += new
    return found


def await_true(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_workers_connect_and_a_stopped_one_is_gone_while_the_others_go_on() -> None:
    with engine() as (served, control), pool() as (process, stub):
        for name in ("one", "two"):
            begin(stub, control, name)
        assert {served.workers.get(timeout=120) for _ in range(2)} == {"one", "two"}
        before = children(process.pid)
        stub.StopWorker(api.StopWorkerRequest(worker_id="one"))
        assert served.ended.get(timeout=120) == "one"
        await_true(lambda: len(children(process.pid)) == len(before) - 1)
        stub.StopWorker(api.StopWorkerRequest(worker_id="never seen"))
        assert served.ended.empty()


def test_a_killed_worker_leaves_the_pool_and_the_next_one_starts(tmp_path: Path) -> None:
    with engine() as (served, control), pool(tmp_path / "log") as (_, stub):
        begin(stub, control, "one")
        served.workers.get(timeout=120)
        [pid] = re.findall(r"worker one started, process (\d+)", (tmp_path / "log").read_text())
        os.kill(int(pid), signal.SIGKILL)
        assert served.ended.get(timeout=120) == "one"
        begin(stub, control, "two")
        assert served.workers.get(timeout=120) == "two"


def test_workers_end_with_a_pool_that_is_killed() -> None:
    with engine() as (served, control), pool() as (process, stub):
        for name in ("one", "two"):
            begin(stub, control, name)
        assert {served.workers.get(timeout=120) for _ in range(2)} == {"one", "two"}
        family = children(process.pid)
        process.kill()
        assert {served.ended.get(timeout=120) for _ in range(2)} == {"one", "two"}
        await_true(lambda: not any(is_alive(pid) for pid in family))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_pool_listens_on_loopback_only_and_says_when_its_port_is_taken() -> None:
    with pool() as (process, _):
        found = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
        [line] = [line for line in found.splitlines() if f"pid={process.pid}," in line]
        address = line.split()[3]
        host, _, port = address.rpartition(":")
        assert host.strip("[]").removeprefix("::ffff:") == "127.0.0.1"
        again = [sys.executable, "-m", "weir.pipelines.stream.worker_pool", f"127.0.0.1:{port}"]
        done = subprocess.run(again, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode != 0
        assert port in done.stderr
