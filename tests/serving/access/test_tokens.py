"""Which tokens count, by which keys; a refusal never repeats the token."""

import asyncio
import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.authority import AUDIENCE, ISSUER, Issuer
from weir.serving.access import certificates as files
from weir.serving.access import tokens as keys
from weir.serving.access.access import Access
from weir.serving.access.tokens import FileKeys, Tokens, UrlKeys, keys_of, parsed
from weir.serving.access_config import AuthConfig
from weir.serving.errors import KeysNotLoadedError, RequestError

ONE = Issuer({"one": "EC", "two": "RSA"})


@pytest.fixture
def config(tmp_path: Path) -> AuthConfig:
    return auth(tmp_path)


def auth(folder: Path, **others: Any) -> AuthConfig:
    known = {"jwks": ONE.publish(folder / "jwks.json"), "issuer": ISSUER, "audience": AUDIENCE}
    return AuthConfig.model_validate(known | others)


def verified(config: AuthConfig, token: str) -> Any:
    async def work() -> Any:
        return await Tokens(config, FileKeys(Path(config.jwks or ""))).verified(token)

    return asyncio.run(work())


def reason(config: AuthConfig, token: str) -> str:
    with pytest.raises(RequestError) as refusal:
        verified(config, token)
    assert token == "" or len(token) < 20 or token not in str(refusal.value)
    return refusal.value.reason


@pytest.mark.parametrize("kid", ["one", "two"])
def test_a_token_says_who_calls(config: AuthConfig, kid: str) -> None:
    token = verified(config, ONE.token(kid, sub="shop", scope="read write"))
    assert (token.subject, token.scopes) == ("shop", {"read", "write"})
    assert 3600 + 25 < token.ends - time.time() < 3600 + 35


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"exp": 1}, "TOKEN_EXPIRED"),
        ({"nbf": 2**40}, "TOKEN_NOT_YET_VALID"),
        ({"aud": "another"}, "TOKEN_WRONG_AUDIENCE"),
        ({"aud": ["another", "yet-another"]}, "TOKEN_WRONG_AUDIENCE"),
        ({"iss": "https://evil.example"}, "TOKEN_WRONG_ISSUER"),
        ({"sub": ""}, "TOKEN_INVALID"),
        ({"exp": "soon"}, "TOKEN_INVALID"),
        ({"exp": float("inf")}, "TOKEN_INVALID"),
    ],
)
def test_what_a_token_says_must_fit(config: AuthConfig, claims: dict[str, Any], expected: str) -> None:
    assert reason(config, ONE.token(**claims)) == expected


@pytest.mark.parametrize("claim", ["exp", "iss", "aud", "sub"])
def test_a_token_that_leaves_something_out_does_not_count(config: AuthConfig, claim: str) -> None:
    assert reason(config, ONE.token(without=(claim,))) == "TOKEN_INVALID"


def test_clocks_may_differ_by_the_leeway(config: AuthConfig) -> None:
    now = int(time.time())
    assert verified(config, ONE.token(exp=now - 20)).subject == "ann"
    assert verified(config, ONE.token(nbf=now + 20)).subject == "ann"
    strict = config.model_copy(update={"leeway_seconds": 0.0})
    assert reason(strict, ONE.token(exp=now - 20)) == "TOKEN_EXPIRED"
    assert reason(strict, ONE.token(nbf=now + 20)) == "TOKEN_NOT_YET_VALID"


def test_another_key_with_the_right_id_does_not_count(config: AuthConfig) -> None:
    assert reason(config, Issuer({"one": "EC"}).token()) == "TOKEN_INVALID"
    assert reason(config, Issuer({"unheard-of": "EC"}).token("unheard-of")) == "TOKEN_INVALID"


def part(value: Any) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


@pytest.mark.parametrize("kid", ["one", "two"])
def test_no_algorithm_of_the_caller_s_choice_counts(config: AuthConfig, kid: str) -> None:
    payload = json.loads(base64.urlsafe_b64decode(ONE.token(kid).split(".")[1] + "=="))
    for name in ("none", "None", "NONE"):
        unsigned = part({"alg": name, "typ": "JWT", "kid": kid}) + b"." + part(payload) + b"."
        assert reason(config, unsigned.decode()) == "TOKEN_INVALID"
    # The public key as the secret of an HMAC, as it is and as its issuer publishes it.
    for secret in (ONE.public_pem(kid), json.dumps(ONE.jwks["keys"][0]).encode()):
        signed = part({"alg": "HS256", "typ": "JWT", "kid": kid}) + b"." + part(payload)
        seal = base64.urlsafe_b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).rstrip(b"=")
        assert reason(config, (signed + b"." + seal).decode()) == "TOKEN_INVALID"
    # An algorithm that is asymmetric, and not that of the key.
    wide = config.model_copy(update={"algorithms": ("RS256", "PS256", "ES256")})
    other = jwt.encode(payload, ONE.keys["two"], "PS256", headers={"kid": "two"})
    assert reason(wide, other) == "TOKEN_INVALID"


def test_secrets_in_the_keys_verify_nothing() -> None:
    with pytest.raises(ValueError, match="no public key"):
        parsed({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "one"}]})
    encrypting = ONE.jwks["keys"][0] | {"use": "enc"}
    with pytest.raises(ValueError, match="no public key"):
        parsed({"keys": [encrypting, 7, {"kty": "EC", "kid": "broken"}, {"kty": ["EC"]}]})
    for nothing in ({}, [], {"keys": {}}, None):
        with pytest.raises(ValueError, match="no public key"):
            parsed(nothing)


def test_a_key_whose_id_is_no_text_has_none() -> None:
    named, nameless = ONE.jwks["keys"][:2]
    assert set(parsed({"keys": [named, nameless | {"kid": ["two"]}]})) == {"one", None}


def test_roles_lie_in_any_claim(tmp_path: Path) -> None:
    nested = auth(tmp_path, scope_claim="realm_access.roles")
    assert verified(nested, ONE.token(realm_access={"roles": ["a", 7, "b"]})).scopes == {"a", "b"}
    assert verified(nested, ONE.token(realm_access="a")).scopes == set()
    named = auth(tmp_path, scope_claim="https://example.com/roles", subject_claim="client_id")
    token = verified(named, ONE.token(**{"https://example.com/roles": ["a"], "client_id": "shop"}))
    assert (token.subject, token.scopes) == ("shop", {"a"})


def test_a_known_token_ends_with_its_time_and_with_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = Issuer({"one": "EC"})
    file = tmp_path / "jwks.json"
    config = AuthConfig(jwks=issuer.publish(file), issuer=ISSUER, audience=AUDIENCE, leeway_seconds=0)

    async def work() -> None:
        keys = FileKeys(file)
        tokens = Tokens(config, keys)
        short, long = issuer.token(exp=int(time.time()) + 2), issuer.token()
        await tokens.verified(short)
        await tokens.verified(long)
        later = time.time() + 3
        monkeypatch.setattr(time, "time", lambda: later)
        with pytest.raises(RequestError, match="expired"):
            await tokens.verified(short)
        await tokens.verified(long)
        Issuer({"one": "EC"}).publish(file)
        keys._keys._looked = float("-inf")
        with pytest.raises(RequestError, match="signature"):
            await tokens.verified(long)

    asyncio.run(work())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
HEADERS = st.fixed_dictionaries(
    {}, optional={"alg": JSON | st.just("ES256"), "kid": JSON | st.just("one"), "crit": JSON}
)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.text(max_size=60),
        st.builds(
            lambda head, body, seal: f"{part(head).decode()}.{part(body).decode()}.{seal}",
            HEADERS,
            JSON,
            st.text(max_size=9),
        ),
        st.builds(
            lambda place, char: ONE.token()[:place] + char + ONE.token()[place + 1 :],
            st.integers(0, 80),
            st.characters(),
        ),
    )
)
def test_whatever_is_sent_is_refused_or_verified(tmp_path_factory: pytest.TempPathFactory, token: str) -> None:
    config = CONFIGS.setdefault("one", auth(tmp_path_factory.mktemp("jwks")))

    async def work() -> None:
        try:
            caller = await Access(config).admit([f"Bearer {token}"], None, "Retrieve")
        except RequestError as error:
            verdict = error.reason
        else:
            verdict = caller.name
        assert verdict == "token ann" or verdict.startswith("TOKEN_")

    asyncio.run(work())


CONFIGS: dict[str, AuthConfig] = {}


def test_a_very_deep_header_is_refused(config: AuthConfig) -> None:
    deep = base64.urlsafe_b64encode(b"[" * 5000).decode()
    assert reason(config, f"{deep}.e30.e30") == "TOKEN_INVALID"


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


JSON_KEYS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kty", "n", "e", "kid", "x"]), inner),
    max_leaves=8,
)
KEYS = st.lists(
    st.fixed_dictionaries(
        {"kty": st.sampled_from(["RSA", "EC", "OKP"])},
        optional=dict.fromkeys(("n", "e", "x", "y", "crv", "alg", "kid", "use"), JSON_KEYS),
    ),
    max_size=3,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=60),
        JSON_KEYS.map(json.dumps).map(str.encode),
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
