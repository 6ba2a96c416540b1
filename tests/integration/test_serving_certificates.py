"""Clients' certificates at a real server: whose count, and what a rotation under load costs."""

import ssl
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest

from tests.integration.guarded import DENIED, QUERY, refused
from tests.serving.authority import Authority
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.access.channel import credentials_of
from weir.serving.access_config import ClientConfig
from weir.serving.client import RetrievalClient, RetrievalError


def test_only_certificates_of_the_authority_count(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    store = Store(str(tmp_path / "store"))
    write_bundle(store, "v1", Catalogue.random())
    auth = {"allow": [{"certificates": ["CN:tester"]}, {"certificates": ["CN:shop"], "to": ["GetInfo"]}]}
    tls = authority.files("server") | {"client_ca_file": str(authority.file)}

    def config(pair: dict[str, str]) -> ClientConfig:
        return ClientConfig.model_validate({"tls": True, "ca_file": authority.file, **pair})

    tester = config(authority.files("tester"))
    with ServerProcess(store, client=tester, tls=tls, auth=auth, http_port=0) as server:
        server.serving("v1")
        with RetrievalClient(server.target, 10, config(authority.files("shop"))) as shop:
            assert shop.info().bundle_version == "v1"
            assert refused(lambda: shop.retrieve(QUERY)) == DENIED
        # The compiled front tells Python's server by a header who calls; nobody else can.
        name, stolen = "x-weir-client-certificate-bin", ssl.PEM_cert_to_DER_cert(authority.pair("tester")[0].decode())
        credentials = credentials_of(config(authority.files("shop")), None)
        with grpc.secure_channel(server.target, credentials) as channel:
            stub = retrieval_pb2_grpc.RetrievalServiceStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                stub.Retrieve(pb.RetrieveRequest(queries=QUERY), metadata=((name, stolen),), timeout=10)
        assert caught.value.code() == DENIED[0]
        for pair in ({}, other.files("tester2")):
            with RetrievalClient(server.target, 3, config(pair)) as stranger:
                assert refused(stranger.info)[0] in {
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                }
        url = "https://" + server.said(r"HTTPS on (\S+),").group(1) + "/v1/info"
        for name, wanted in (("tester", 200), ("shop", 200), ("unknown", 403)):
            context = ssl.create_default_context(cafile=str(authority.file))
            pair = authority.files(name)
            context.load_cert_chain(pair["certificate_file"], pair["key_file"])
            try:
                status = urllib.request.urlopen(url, timeout=10, context=context).status
            except urllib.error.HTTPError as error:
                status = error.code
            assert status == wanted
        context = ssl.create_default_context(cafile=str(authority.file))
        with pytest.raises(OSError, match=r"(?i)certificate|closed|reset|eof"):
            urllib.request.urlopen(url, timeout=10, context=context)


def test_a_certificate_that_rotates_under_load_loses_no_call(tmp_path: Path) -> None:
    authority, later = Authority(tmp_path), Authority(tmp_path, "later")
    store = Store(str(tmp_path / "store"))
    write_bundle(store, "v1", Catalogue.random())
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.file.read_bytes() + later.file.read_bytes())
    pair = authority.files("server")
    client = ClientConfig.model_validate({"tls": True, "ca_file": trusted, **authority.files("client")})
    tls = pair | {"client_ca_file": str(trusted)}
    # Connections end often, so that many handshakes happen while the files change.
    with ServerProcess(store, client=client, tls=tls, max_connection_age_seconds=0.5) as server:
        server.serving("v1")
        stop, failed, answered = threading.Event(), list[Exception](), [0]

        def call() -> None:
            with RetrievalClient(server.target, 20, client) as asking:
                while not stop.is_set():
                    try:
                        asking.retrieve(QUERY)
                        answered[0] += 1
                    except RetrievalError as error:
                        failed.append(error)

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(6):
                signer = later if number % 2 == 0 else authority
                # One after the other, as a careless script would; the client's files too.
                for mine in (tls, client.model_dump(include={"certificate_file", "key_file"})):
                    fresh = zip(("certificate_file", "key_file"), signer.pair(f"renewed-{number}"), strict=True)
                    for name, data in fresh:
                        Path(mine[name]).write_bytes(data)
                        time.sleep(0.4)
            served = ssl.get_server_certificate(("127.0.0.1", int(server.target.rpartition(":")[2])))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not failed
        assert answered[0] > 50
        assert ssl.PEM_cert_to_DER_cert(served) == ssl.PEM_cert_to_DER_cert(Path(pair["certificate_file"]).read_text())
