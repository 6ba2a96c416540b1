"""Callers over HTTP who send or read slowly, or not at all: each holds a connection for a bounded time."""

import contextlib
import json
import resource
import select
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store

HOST = b"Host: 127.0.0.1\r\n"
HEADERS = b"POST /v1/retrieve HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nContent-Length: 64\r\n\r\n"
QUERY = json.dumps({"queries": [{"itemId": "item-1", "k": 3}]}).encode()

HASTY = """
from weir.serving.http import connection
connection.HEAD_SECONDS = connection.BODY_SECONDS = connection.ANSWER_SECONDS = 1.0
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path / "store"))
    write_bundle(store, "v1", Catalogue.random(64, prefix="i" * 500))
    return store


@contextlib.contextmanager
def serving(store: Store, *, hasty: bool, **config: object) -> Iterator[tuple[ServerProcess, tuple[str, int]]]:
    """A server with its own times for each part of a request, or with a second for each."""
    process = ServerProcess(store, http_port=0, **config)
    process.imports = (HASTY if hasty else "") + process.imports
    with process as server:
        server.serving("v1")
        host, port = server.said(r"ready: .* HTTP on (\S+):(\d+),").groups()
        yield server, (host, int(port))


def answered(address: tuple[str, int], within: float = 10) -> float:
    """Return the seconds that a good call takes."""
    started = time.monotonic()
    url = f"http://{address[0]}:{address[1]}/v1/retrieve"
    request = urllib.request.Request(url, QUERY, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=within) as answer:  # noqa: S310 - http
        assert answer.status == 200
    return time.monotonic() - started


def until_ended(connection: socket.socket, trickle: bytes = b"") -> tuple[bytes, float]:
    """Send a byte now and then, until the server ends the connection; return what it said, and after how long."""
    started, found = time.monotonic(), b""
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < started + 20:
            if trickle:
                connection.sendall(trickle)
            if select.select([connection], [], [], 0.1)[0]:
                if not (data := connection.recv(65536)):
                    break
                found += data
    return found, time.monotonic() - started


@pytest.mark.parametrize("trickle", [b"", b" "])
def test_headers_and_bodies_that_do_not_come_end(store: Store, trickle: bytes) -> None:
    with serving(store, hasty=True) as (server, address):
        lines = list(server.lines)
        for begun, status in ((b"POST /v1/retr", None), (HEADERS[:-2], None), (HEADERS + b"{", b"408")):
            with socket.create_connection(address, timeout=20) as slow:
                slow.sendall(begun)
                found, seconds = until_ended(slow, trickle.replace(b" ", b"x") if status is None else trickle)
            assert 0.5 < seconds < 5
            assert (found.split()[1:2] or [None])[0] == status
            if status is not None:
                assert json.loads(found.partition(b"\r\n\r\n")[2])["details"][0]["reason"] == "BODY_LATE"
        # The next request of a connection has its time, too, and one that is complete takes what it takes.
        with socket.create_connection(address, timeout=20) as one:
            for _ in range(3):
                one.sendall(HEADERS.replace(b"64", str(len(QUERY)).encode()))
                time.sleep(0.4)
                one.sendall(QUERY)
                assert one.recv(65536).split()[1] == b"200"
                time.sleep(0.4)
            time.sleep(1.5)
            one.sendall(HEADERS.replace(b"64", str(len(QUERY)).encode()) + QUERY)
            assert one.recv(65536).split()[1] == b"200"
        assert server.lines == lines
        assert server.metric("grpc_server_handled_total", 'grpc_code="DeadlineExceeded"') == 1


def test_who_does_not_read_an_answer_is_cut_off(store: Store) -> None:
    queries = json.dumps({"queries": [{"itemId": "i" * 500 + "-1", "k": 64}] * 100}).encode()
    asks = HEADERS.replace(b"64", str(len(queries)).encode()) + queries
    with serving(store, hasty=True) as (server, address), contextlib.ExitStack() as opened:
        before = server.metric("process_open_fds")
        for _ in range(8):
            slow = opened.enter_context(socket.socket())
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(address)
            slow.sendall(asks)
        ends = time.monotonic() + 20
        time.sleep(0.5)
        while server.metric("process_open_fds") > before + 2:
            assert time.monotonic() < ends
            time.sleep(0.1)
        assert answered(address) < 5


def test_callers_who_send_no_body_keep_no_one_out(store: Store) -> None:
    """With the times as they are: 4,100 of them are more connections than a server takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 6000:
        pytest.skip("needs 6,000 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 6000), hard))
    with serving(store, hasty=False) as (server, address), contextlib.ExitStack() as opened:
        for number in range(4100):
            slow = opened.enter_context(socket.create_connection(address, timeout=20))
            with contextlib.suppress(ConnectionError):
                slow.sendall(HEADERS)
            if number % 1000 == 999:
                assert answered(address) < 5
        ends = time.monotonic() + 15
        while True:
            try:
                assert answered(address) < 5
                break
            except (OSError, AssertionError):
                assert time.monotonic() < ends
                time.sleep(0.2)
        assert server.process.poll() is None
