"""Which tokens count: signed by the issuer, for this service, now; anything else is refused, and never repeated."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.authority import AUDIENCE, ISSUER, Issuer
from weir.serving.access.access import Access
from weir.serving.access.config import AuthConfig
from weir.serving.access.keys import FileKeys, parsed
from weir.serving.access.tokens import Tokens
from weir.serving.errors import RequestError

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
