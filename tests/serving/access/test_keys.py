"""Keys behind a URL, of a real server: fetched now and then, for new ids, and not more often than that."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.authority import Issuer
from weir.serving.access import files, keys
from weir.serving.access.errors import KeysNotLoadedError
from weir.serving.access.keys import UrlKeys, keys_of


class Published:
    """Serves an issuer's keys, while `on`, and counts how often."""

    def __init__(self) -> None:
        self.issuer, self.on, self.asked = Issuer({"one": "EC", "two": "EC"}), True, 0
        published = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                published.asked += 1
                self.send_response(200 if published.on else 503)
                self.end_headers()
                self.wfile.write(json.dumps(published.issuer.jwks).encode() if published.on else b"later")

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/keys"


@pytest.fixture
def published() -> Iterator[Published]:
    found = Published()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def test_a_file_that_is_no_jwks_is_named(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    for text in ("no json", "[]", '{"keys": []}'):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"keys\.json is no JWKS: .+"):
            keys_of(str(file), 300)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kty", "n", "e", "kid", "x"]), inner),
    max_leaves=8,
)
KEYS = st.lists(
    st.fixed_dictionaries(
        {"kty": st.sampled_from(["RSA", "EC", "OKP"])},
        optional=dict.fromkeys(("n", "e", "x", "y", "crv", "alg", "kid", "use"), JSON),
    ),
    max_size=3,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=60),
        JSON.map(json.dumps).map(str.encode),
        KEYS.map(lambda found: json.dumps({"keys": found}).encode()),
        st.sampled_from([b"[" * 100_000, json.dumps(Issuer({"one": "EC"}).jwks)[:-20].encode()]),
    )
)
def test_whatever_a_file_of_keys_turns_into_those_from_before_stay(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(Issuer({"one": "EC"}).jwks))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_LOOK_SECONDS", 0.0)
        found = keys_of(str(file), 300)
        known = asyncio.run(found.get("one"))
        file.write_bytes(data)
        assert asyncio.run(found.get("one")) is known


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_a_file_of_keys_may_be_in_any_encoding_of_json(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(Issuer({"one": "EC"}).jwks), encoding=encoding)
    assert set(asyncio.run(keys_of(str(file), 300).get("one"))) == {"one", None}


def test_a_new_key_is_fetched_at_once_and_an_invented_one_rarely(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        found = keys_of(published.url, 300)
        first = await found.get("one")
        assert set(first) == {"one", "two"}
        for number in range(50):
            assert await found.get(f"invented-{number}") is first
        assert published.asked == 1
        published.issuer = Issuer({"three": "EC"})
        monkeypatch.setattr(keys, "_PAUSE_SECONDS", 0.0)
        # Many callers with the new key wait for one fetch.
        assert {frozenset(each) for each in await asyncio.gather(*(found.get("three") for _ in range(20)))} == {
            frozenset({"three", None})
        }
        assert published.asked == 2

    asyncio.run(work())


def test_keys_are_fetched_again_after_a_while(published: Published) -> None:
    async def work() -> None:
        found = UrlKeys(published.url, every=0.0)
        assert "one" in await found.get("one")
        published.issuer = Issuer({"one": "EC"})
        before = await found.get("one")
        while await found.get("one") is before:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(work(), 20))


def test_while_the_issuer_is_away_the_keys_stay(
    published: Published, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keys, "_PAUSE_SECONDS", 0.0)
    published.on = False

    async def work() -> None:
        found = UrlKeys(published.url, 300)
        for _ in range(3):
            with pytest.raises(KeysNotLoadedError):
                await found.get("one")
        assert len(caplog.records) == 1
        published.on = True
        known = await found.get("one")
        published.on = False
        assert await found.get("new") is known

    asyncio.run(work())


def test_one_caller_who_goes_ends_no_fetch(published: Published) -> None:
    async def work() -> None:
        found = UrlKeys(published.url, 300)
        gone, stays = asyncio.create_task(found.get("one")), asyncio.create_task(found.get("one"))
        await asyncio.sleep(0)
        gone.cancel()
        assert "one" in await stays

    asyncio.run(work())
