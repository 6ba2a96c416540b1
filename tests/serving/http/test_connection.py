"""What is no HTTP, sent to a real server: answered as errors are, not logged, and no fault of the server."""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web

from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.serving.http.connection import Connection

POST = b"POST /v1/retrieve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
GET = b"GET /v1/info HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SECRET = b"unmistakable"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    store = Store(str(tmp_path_factory.mktemp("store")))
    write_bundle(store, "v1", Catalogue.random())
    with ServerProcess(store, http_port=0) as process:
        process.serving("v1")
        yield process


def connected(server: ServerProcess) -> socket.socket:
    host, port = server.said(r"HTTP on (\S+):(\d+),").groups()
    return socket.create_connection((host, int(port)), timeout=20)


def answer_to(server: ServerProcess, request: bytes) -> tuple[int, Any, bytes]:
    """Return the status, the decoded body and all bytes of the answer; the server has to close the connection."""
    with connected(server) as connection:
        connection.sendall(request)
        found = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = found.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body), found


def handled(server: ServerProcess, code: str) -> float:
    return server.metric("grpc_server_handled_total", 'grpc_method="Retrieve"', f'grpc_code="{code}"')


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (SECRET + b"\r\n\r\n", "cannot be read"),
        (b"\x16\x03\x01" + SECRET + b"\r\n\r\n", "cannot be read"),
        (b"GET http://[" + SECRET + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "cannot be read"),
        (GET + b"Authorization: Bearer " + SECRET + b"\x01\r\n\r\n", "cannot be read"),
        (GET + b"Authorization Bearer " + SECRET + b"\r\n\r\n", "cannot be read"),
        (GET + b"Cookie: weir-token=" + SECRET + b"\x00\r\n\r\n", "cannot be read"),
        (GET + b"Authorization: Bearer " + SECRET + b"x" * 20_000 + b"\r\n\r\n", "too long"),
        (GET + b"a: b\r\n" * 1000 + b"\r\n", "cannot be read"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n" + SECRET, "cannot be read"),
    ],
)
def test_what_is_no_http_is_an_error_like_others(server: ServerProcess, request_: bytes, problem: str) -> None:
    lines = list(server.lines)
    status, body, found = answer_to(server, request_)
    assert (status, body["code"]) == (400, 3)
    assert problem in body["message"]
    assert SECRET not in found
    assert server.lines == lines


def test_a_broken_body_is_the_caller_s_fault(server: ServerProcess) -> None:
    lines, before = list(server.lines), handled(server, "InvalidArgument")
    status, body, _ = answer_to(server, POST + b"Content-Encoding: gzip\r\nContent-Length: 12\r\n\r\n" + SECRET)
    assert (status, body["details"][0]["reason"]) == (400, "UNDECODABLE")
    assert handled(server, "InvalidArgument") == before + 1
    assert server.lines == lines


def test_a_caller_who_leaves_halfway_has_cancelled(server: ServerProcess) -> None:
    def started() -> float:
        return server.metric("grpc_server_started_total", 'grpc_method="Retrieve"')

    lines, first, before = list(server.lines), started(), handled(server, "Canceled")
    with connected(server) as connection:
        connection.sendall(POST + b"Content-Length: 12\r\n\r\n{")
        until(lambda: started() > first)
    until(lambda: handled(server, "Canceled") > before)
    assert handled(server, "Unknown") == 0
    assert server.lines == lines


def test_faults_of_the_server_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(_: web.BaseRequest) -> web.StreamResponse:
        raise ZeroDivisionError

    async def work() -> bytes:
        server = web.Server(fails)
        listening = await asyncio.get_running_loop().create_server(lambda: Connection(server, 5.0), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        writer.write(GET + b"\r\n")
        answer = await reader.read()
        writer.close()
        listening.close()
        await server.shutdown()
        return answer

    assert b" 500 " in asyncio.run(work())
    assert "ZeroDivisionError" in caplog.text
