"""Certificates in real handshakes: gRPC and HTTP, with and without those of clients, and a new one for an old one."""

import asyncio
import os
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509

from tests.serving.authority import Authority
from weir.serving.access import certificates as files
from weir.serving.access.certificates import grpc_credentials, http_context, names_of
from weir.serving.access_config import TlsConfig


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def client_context(authority: Authority, pair: dict[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.file))
    if pair is not None:
        context.load_cert_chain(pair["certificate_file"], pair["key_file"])
    return context


async def server_name(port: int, context: ssl.SSLContext) -> str:
    """Return whose certificate a server has, and read a line, which TLS 1.3 sends once the client's is verified."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="127.0.0.1")
    subject = writer.get_extra_info("peercert")["subject"]
    line = await reader.readline()
    writer.close()
    assert line == b"in\n"
    return str(dict(pair for (pair,) in subject)["commonName"])


async def greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"in\n")
    await writer.drain()
    writer.close()


async def http_port(config: TlsConfig, **options: bool) -> int:
    server = await asyncio.start_server(greeted, "127.0.0.1", 0, ssl=http_context(config, **options))
    return int(server.sockets[0].getsockname()[1])


class Anything(grpc.GenericRpcHandler):
    """Answers every method with the client's certificate."""

    def service(self, handler_call_details: Any) -> Any:
        async def handle(request: bytes, context: Any) -> bytes:
            found = context.auth_context().get("x509_pem_cert", [b"none"])
            return bytes(found[0])

        return grpc.unary_unary_rpc_method_handler(handle)


async def over_grpc(port: int, authority: Authority, pair: tuple[bytes, bytes] | None = None) -> bytes:
    certificate, key = pair or (None, None)
    credentials = grpc.ssl_channel_credentials(authority.file.read_bytes(), key, certificate)
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        answer = await channel.unary_unary("/any/thing")(b"", timeout=5)
        return bytes(answer)


def test_each_new_connection_gets_the_newest_certificate(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_LOOK_SECONDS", 0.0)
    pair = authority.files("first")

    async def work() -> None:
        port = await http_port(TlsConfig.model_validate(pair))
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Anything(),))
        rpc = server.add_secure_port("127.0.0.1:0", grpc_credentials(TlsConfig.model_validate(pair)))
        await server.start()
        context = client_context(authority)
        h2 = client_context(authority)
        h2.set_alpn_protocols(["h2"])
        assert await server_name(port, context) == "first"
        assert await over_grpc(rpc, authority) == b"none"
        for name, file in zip(("certificate_file", "key_file"), authority.pair("second"), strict=True):
            Path(pair[name]).write_bytes(file)
            # Between the two files the pair does not fit: the old one stays.
            expected = "first" if name == "certificate_file" else "second"
            assert await server_name(port, context) == expected
            assert await grpc_server_name(rpc, h2) == expected
        await server.stop(None)

    asyncio.run(work())


async def grpc_server_name(port: int, context: ssl.SSLContext) -> str:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="127.0.0.1")
    subject = writer.get_extra_info("peercert")["subject"]
    writer.close()
    return str(dict(pair for (pair,) in subject)["commonName"])


def test_only_clients_of_the_authority_are_let_in(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    config = TlsConfig.model_validate(authority.files("server") | {"client_ca_file": authority.file})
    certificate, key = authority.pair("ann", x509.UniformResourceIdentifier("spiffe://here/ann"))

    async def work() -> None:
        port = await http_port(config)
        assert await server_name(port, client_context(authority, authority.files("ann"))) == "server"
        for pair in (None, other.files("stranger")):
            with pytest.raises((OSError, AssertionError)):
                await server_name(port, client_context(authority, pair))
        # The page asks for tokens only: browsers have no certificates.
        assert await server_name(await http_port(config, asks_clients=False), client_context(authority)) == "server"

        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Anything(),))
        rpc = server.add_secure_port("127.0.0.1:0", grpc_credentials(config))
        await server.start()
        found = await over_grpc(rpc, authority, (certificate, key))
        assert set(names_of(found)) == {"URI:spiffe://here/ann", "DNS:localhost", "IP:127.0.0.1", "CN:ann"}
        for stranger in (None, other.pair("stranger")):
            with pytest.raises(grpc.RpcError) as refusal:
                await over_grpc(rpc, authority, stranger)
            assert refusal.value.code() == grpc.StatusCode.UNAVAILABLE
        await server.stop(None)

    asyncio.run(work())


def test_no_session_outlives_its_authority(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_LOOK_SECONDS", 0.0)
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.file.read_bytes())
    config = TlsConfig.model_validate(authority.files("server") | {"client_ca_file": trusted})

    def connected(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> ssl.SSLSession | None:
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as secure,
        ):
            if secure.recv(3) != b"in\n":
                raise ConnectionResetError
            return secure.session

    async def work() -> None:
        port = await http_port(config)
        context = client_context(authority, authority.files("ann"))
        session = await asyncio.to_thread(connected, port, context, None)
        trusted.write_bytes(Authority(tmp_path, "other").file.read_bytes())
        for kept in (None, session):
            with pytest.raises(OSError, match=r".*"):
                await asyncio.to_thread(connected, port, context, kept)

    asyncio.run(work())


def test_names_that_break_the_standard_are_none() -> None:
    assert names_of(b"no certificate") == ()


def test_a_pair_that_does_not_fit_is_refused_at_the_start(authority: Authority) -> None:
    one, other = authority.files("one"), authority.files("other")
    config = TlsConfig.model_validate(one | {"key_file": other["key_file"]})
    for make in (grpc_credentials, http_context):
        with pytest.raises((OSError, ValueError)):
            make(config)


def test_a_file_that_vanishes_changes_nothing(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    file = authority.folder / "value"
    file.write_text("1")
    made = files.FromFiles("the value", [file], lambda: int(file.read_text()))
    for _ in range(3):
        file.unlink(missing_ok=True)
        made._looked = float("-inf")
        assert made.get() == 1
    assert len(caplog.records) == 1
    file.write_text("22")
    os.utime(file, ns=(time.time_ns(), time.time_ns()))
    made._looked = float("-inf")
    assert made.get() == 22
