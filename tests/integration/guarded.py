"""A real server that asks for tokens, over gRPC and HTTP with TLS; clients that close while they call.

    python -m tests.integration.guarded blocking|asyncio TARGET CLIENT_CONFIG

A thread of gRPC that drops a token waits for Python's lock. Here it does so whenever the last channel is closed, as it
happens by chance where many threads want that lock. A process that hangs ends after some seconds with its stacks.
"""

import asyncio
import faulthandler
import gc
import http.client
import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from google.rpc import status_pb2
from grpc_status import rpc_status

from tests.integration import hostile
from tests.serving.authority import AUDIENCE, ISSUER, Authority, Issuer
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.access.channel import AsyncChannel, Channel, SentToken
from weir.serving.access_config import ClientConfig
from weir.serving.client import CHANNEL_OPTIONS, RetrievalClient, RetrievalError, by_history

CALLS_PER_SECOND: Final = 50
"""Of each caller; a busy machine has to exceed it."""

QUERY = [by_history(["item-1", "item-2"], 5)]
RULES = [
    {"to": ["Retrieve", "GetInfo"], "scopes": ["read"]},
    {"to": ["Retrieve", "Embed", "GetInfo", "exact", "pin", "reflection"], "subjects": ["tester"]},
]


DENIED = (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED")


@dataclass
class Guarded:
    """A server that asks for tokens, and the issuer of those."""

    process: ServerProcess
    issuer: Issuer
    authority: Authority
    folder: Path

    def token_file(self, token: str) -> Path:
        file = self.folder / f"token-{time.monotonic_ns()}"
        file.write_text(token + "\n")
        return file

    def client(self, token: str, target: str | None = None) -> RetrievalClient:
        config = ClientConfig(tls=True, ca_file=self.authority.file, token_file=self.token_file(token))
        return RetrievalClient(target or self.process.target, 10, config)

    @property
    def access_log(self) -> str:
        """The server's lines about calls so far."""
        assert self.process.out is not None
        return self.process.out.read_text()

    @property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority.file))

    def http(self, path: str, body: bytes | None, *authorization: str) -> tuple[int, Any, dict[str, str]]:
        """Return HTTP status, decoded body and headers."""
        where = self.process.said(r"HTTPS on (\S+),").group(1)
        connection = http.client.HTTPSConnection(where, timeout=20, context=self.context)
        connection.putrequest("POST" if body is not None else "GET", path)
        for value in authorization:
            connection.putheader("Authorization", value)
        if body is not None:
            connection.putheader("Content-Type", "application/json")
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        found = answer.status, json.loads(answer.read() or b"null"), dict(answer.headers)
        connection.close()
        return found

    def rpc(self, method: str, request: Any, *authorization: str) -> status_pb2.Status:
        """Return the status of a call."""
        credentials = grpc.ssl_channel_credentials(self.authority.file.read_bytes())
        with grpc.secure_channel(self.process.target, credentials) as channel:
            call = channel.unary_unary(f"/weir.retrieval.v1.RetrievalService/{method}")
            try:
                metadata = [("authorization", value) for value in authorization]
                call(request.SerializeToString(), metadata=metadata, timeout=20)
            except grpc.RpcError as error:
                return rpc_status.from_call(error) or status_pb2.Status(code=2, message=str(error))
            return status_pb2.Status()

    def bytes_over_grpc(self, authorization: bytes) -> bytes:
        """Return what a server answers to a header that no client of gRPC would send."""
        aim = hostile.Aim(self.process.target, ClientConfig(tls=True, ca_file=self.authority.file))
        with aim.speaking() as connection:
            connection.sendall(hostile.call(hostile.headers(aim, {"authorization": authorization}), 1, b""))
            found = b""
            while not hostile.has_ended(found) and (data := connection.recv(65536)):
                found += data
            return found

    def bytes_over_http(self, authorization: bytes) -> bytes:
        """Return what a server answers to a header that no client of HTTP would send."""
        host, port = self.process.said(r"HTTPS on (\S+):(\d+),").groups()
        with (
            socket.create_connection((host, int(port)), timeout=20) as plain,
            self.context.wrap_socket(plain, server_hostname=host) as connection,
        ):
            head = b"GET /v1/info HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            connection.sendall(head + b"Authorization: " + authorization + b"\r\n\r\n")
            return b"".join(iter(lambda: connection.recv(65536), b""))


@contextmanager
def guarded_server(folder: Path) -> Iterator[Guarded]:
    """Start a server with the rules above; its files go to `folder`."""
    issuer, authority = Issuer(), Authority(folder)
    store = Store(str(folder / "store"))
    write_bundle(store, "v1", Catalogue.random())
    auth = {
        "jwks": issuer.publish(folder / "jwks.json"),
        "issuer": ISSUER,
        "audience": AUDIENCE,
        "allow": RULES,
        "calls_per_second": CALLS_PER_SECOND,
        "burst": 300,
    }
    token = folder / "token"
    token.write_text(issuer.token(sub="tester"))
    client = ClientConfig(tls=True, ca_file=authority.file, token_file=token)
    options = {"http_port": 0, "health_port": 0, "tls": authority.files("server"), "auth": auth, "access_log": True}
    with ServerProcess(store, client=client, out=folder / "access.jsonl", **options) as process:
        process.serving("v1")
        yield Guarded(process, issuer, authority, folder)


def refused(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    """Return the code and the reason of a refusal."""
    with pytest.raises(RetrievalError) as refusal:
        call()
    return refusal.value.code, refusal.value.reason


_ROUNDS = 30
_DROPPED = threading.Event()


def _drop_slowly(_: SentToken) -> None:
    _DROPPED.set()
    time.sleep(0.03)


def _close_two(target: str, config: ClientConfig) -> None:
    with closing(Channel(target, None, CHANNEL_OPTIONS)):
        with Channel(target, config, CHANNEL_OPTIONS).open() as channel:
            # From now on gRPC alone holds the token.
            gc.collect()
            retrieval_pb2_grpc.RetrievalServiceStub(channel).GetInfo(pb.GetInfoRequest(), timeout=10)
        del channel
        assert _DROPPED.wait(10), "gRPC holds the token of a closed channel"


async def _close_two_async(target: str, config: ClientConfig) -> None:
    async with AsyncChannel(target, None, CHANNEL_OPTIONS).open():
        async with AsyncChannel(target, config, CHANNEL_OPTIONS).open() as channel:
            gc.collect()
            await retrieval_pb2_grpc.RetrievalServiceStub(channel).GetInfo(pb.GetInfoRequest(), timeout=10)
        del channel
        assert _DROPPED.wait(10), "gRPC holds the token of a closed channel"


def main(kind: str, target: str, config: ClientConfig) -> None:
    """Close a channel that has called, and another one while the token of the first one is dropped."""
    SentToken.__del__ = _drop_slowly  # type: ignore[attr-defined]
    for _ in range(_ROUNDS):
        faulthandler.dump_traceback_later(20, exit=True)
        if kind == "blocking":
            _close_two(target, config)
        else:
            asyncio.run(_close_two_async(target, config))
        _DROPPED.clear()
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], ClientConfig.model_validate_json(sys.argv[3]))
