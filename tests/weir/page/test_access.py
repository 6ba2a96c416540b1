"""The page of a real server with tokens: nothing without a token, by header or by a browser's cookie."""

import http.client
import json
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.cookies import SimpleCookie
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.serving.authority import AUDIENCE, ISSUER, Authority, Issuer
from tests.serving.process import ServerProcess
from tests.weir.up.damage import whole_store
from weir.config import Settings
from weir.contracts import Store
from weir.page.access import Rights
from weir.page.server import _door, page_served
from weir.serving.access_config import ClientConfig

PATHS = {"/api/stream": None, "/api/map": None, "/api/caller": None, "/api/query": {"user": "user-1"}}


@dataclass
class Page:
    """Where a page listens, and who signs tokens for it."""

    address: str
    issuer: Issuer
    authority: Authority
    local: "Page | None" = None
    """The same page on loopback."""

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, bytes, Any]:
        """Return status, the first bytes and the headers."""
        context = ssl.create_default_context(cafile=str(self.authority.file))
        port = int(self.address.rpartition(":")[2])
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=30, context=context
        )
        if self.address.startswith("http:"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        data = None if body is None else json.dumps(body)
        kind = {} if body is None else {"Content-Type": "application/json"}
        connection.request("GET" if body is None else "POST", path, data, kind | headers)
        answer = connection.getresponse()
        found = answer.status, answer.readline(), answer.headers
        connection.close()
        return found

    def bearer(self, **claims: Any) -> str:
        return f"Bearer {self.issuer.token(**claims)}"


@pytest.fixture(scope="module", params=[False, True], ids=["closed", "shows-data"])
def page(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Page]:
    folder: Path = tmp_path_factory.mktemp("door")
    store, issuer, authority, token = whole_store(str(folder / "store")), Issuer(), Authority(folder), folder / "token"
    token.write_text(issuer.token(sub="page"))
    client = {"tls": True, "ca_file": str(authority.file), "token_file": str(token)}
    serving: dict[str, Any] = {
        "tls": authority.files("server"),
        "auth": {
            "jwks": issuer.publish(folder / "jwks.json"),
            "issuer": ISSUER,
            "audience": AUDIENCE,
            "leeway_seconds": 0,
            "allow": [{"subjects": ["page", "ann"]}, {"subjects": ["bob"], "to": ["GetInfo"]}],
        },
    }
    with ServerProcess(store, client=ClientConfig.model_validate(client), **serving) as server:
        server.serving("00000000-0000000001")
        monitor = {"target": server.target, "page_host": "0.0.0.0", "page_port": 0, "metrics_port": 1}  # noqa: S104
        settings = Settings.model_validate(
            {
                "pipeline": {"log": str(folder), "metrics_port": 1},
                "trainer": {"metrics_port": 1},
                "serving": serving | {"metrics_port": 1},
                "monitor": monitor | {"page_shows_data": request.param},
                "client": client,
            }
        )
        with page_served(settings, store) as address:
            assert address is not None
            assert address.startswith("https://")
            on_loopback = settings.monitor.model_copy(update={"page_host": "127.0.0.1"})
            with page_served(settings.model_copy(update={"monitor": on_loopback}), store) as local:
                assert local is not None
                assert local.startswith("http://")
                yield Page(address, issuer, authority, Page(local, issuer, authority))


def test_certificates_alone_close_no_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    tls = {**authority.files("server"), "client_ca_file": str(authority.file)}
    for host, warns in (("127.0.0.1", False), ("0.0.0.0", True)):  # noqa: S104
        settings = Settings.model_validate({"serving": {"tls": tls}, "monitor": {"page_host": host}})
        assert _door(settings) is None
        assert ("the page asks no caller" in caplog.text) == warns


def test_without_the_keys_there_is_no_page_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    auth = {"jwks": str(tmp_path / "gone.json"), "issuer": ISSUER, "audience": AUDIENCE}
    settings = Settings.model_validate({"serving": {"auth": auth}, "monitor": {"page_port": 0}})
    with page_served(settings, Store(str(tmp_path / "store"))) as address:
        assert address is None
    assert "gone.json" in caplog.text


def test_what_the_page_is_made_of_is_open_and_nothing_else(page: Page) -> None:
    for path in ("/", "/main.js", "/page.css", "/door.js"):
        assert page.ask(path)[0] == 200
    for path, body in PATHS.items():
        for headers in ({}, {"Authorization": "Bearer x.y.z"}, {"Cookie": "weir-token=x.y.z"}):
            status, text, answered = page.ask(path, body, **headers)
            assert status == 401
            assert answered["WWW-Authenticate"].startswith('Bearer realm="weir"')
            assert b"user-1" not in text


def test_other_processes_of_the_machine_need_a_token_too(page: Page) -> None:
    local = page.local
    assert local is not None
    click = {"user": "user-1", "item": "item-1"}
    for path, body in {**PATHS, "/api/click": click}.items():
        for headers in ({}, {"Authorization": "Bearer x.y.z"}):
            assert local.ask(path, body, **headers)[0] == 401
    bob, ann = ({"Authorization": page.bearer(sub=sub)} for sub in ("bob", "ann"))
    assert local.ask("/api/query", {"user": "user-1"}, **ann)[0] == 200
    assert local.ask("/api/query", {"user": "user-1"}, **bob)[0] == 403
    status, _, answered = local.ask("/api/token", {"token": page.issuer.token(sub="ann")})
    [cookie] = SimpleCookie(answered["Set-Cookie"]).values()
    assert (status, bool(cookie["secure"]), bool(cookie["httponly"])) == (200, False, True)
    assert local.ask("/api/query", {"user": "user-1"}, Cookie=f"weir-token={cookie.value}")[0] == 200


def test_rights_are_those_of_the_server(page: Page, request: pytest.FixtureRequest) -> None:
    shows = "shows-data" in request.node.name
    bob, ann = ({"Authorization": page.bearer(sub=sub)} for sub in ("bob", "ann"))
    assert page.ask("/api/stream", **bob)[0] == 200
    assert page.ask("/api/query", {"user": "user-1"}, **bob)[0] == 403
    assert page.ask("/api/map", **bob)[0] == 403
    assert page.ask("/api/query", {"user": "user-1"}, **ann)[0] == (200 if shows else 403)
    assert page.ask("/api/click", {"user": "user-1", "item": "item-1"}, **ann)[0] == 403


def test_a_browser_keeps_a_token_that_no_script_reads(page: Page) -> None:
    assert page.ask("/api/token", {"token": page.issuer.token(exp=1)})[0] == 401
    assert page.ask("/api/token", {"token": 7})[0] == 400
    assert page.ask("/api/token", [])[0] == 400
    token = page.issuer.token(sub="ann")
    status, text, answered = page.ask("/api/token", {"token": f" {token}\n"})
    assert (status, text) == (200, b"{}")
    [cookie] = SimpleCookie(answered["Set-Cookie"]).values()
    assert cookie.value == token
    assert cookie["httponly"]
    assert cookie["secure"]
    assert (cookie["samesite"], cookie["path"]) == ("Strict", "/api/")
    assert 3500 < int(cookie["max-age"]) <= 3600
    assert page.ask("/api/stream", Cookie=f"weir-token={token}")[0] == 200
    # Another site's page cannot have a browser enter or ask.
    assert page.ask("/api/token", {"token": token}, Origin="https://evil.example")[0] == 403
    assert page.ask("/api/caller", Origin="https://evil.example", Cookie=f"weir-token={token}")[0] == 403


def test_a_stream_ends_with_its_token(page: Page) -> None:
    context = ssl.create_default_context(cafile=str(page.authority.file))
    port = int(page.address.rpartition(":")[2])
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
    headers = {"Authorization": page.bearer(sub="bob", exp=int(time.time()) + 3)}
    connection.request("GET", "/api/stream", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 200
    while answer.readline():
        pass
    connection.close()
    assert page.ask("/api/stream", **headers)[0] == 401


@pytest.mark.parametrize(
    ("host", "shows", "folder"),
    list(product(["127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.5", "box"], [False, True], [False, True])),  # noqa: S104
)
def test_off_loopback_it_is_read_only_and_shows_data_only_where_told_to(host: str, shows: bool, folder: bool) -> None:
    rights = Rights.on(host, shows_data=shows, has_folder=folder)
    local = host in {"127.0.0.1", "::1", "localhost"}
    assert rights.data == (local or shows)
    assert rights.click == (local and folder)
