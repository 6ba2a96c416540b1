"""Bearer tokens (JWT, RFC 7519 and 8725) and the keys that sign them."""

import asyncio
import json
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import jwt
from jwt import PyJWK, PyJWKClient
from jwt.exceptions import PyJWTError

from weir.runtime.log_once import LogOnce
from weir.serving.access.certificates import FromFiles
from weir.serving.access_config import AuthConfig
from weir.serving.errors import (
    KeysNotLoadedError,
    RequestError,
    TokenAudienceError,
    TokenExpiredError,
    TokenInvalidError,
    TokenIssuerError,
    TokenNotYetValidError,
)

__all__ = ["FileKeys", "Keys", "Token", "Tokens", "UrlKeys", "keys_of"]

log = logging.getLogger(__name__)

Keys = dict[str | None, PyJWK]
"""Keys by key id; the key None stands for a key without an id, or for the only key."""

_TYPES: Final = ("RSA", "EC", "OKP")
"""Types of public keys: a shared secret (``oct``) in the document must never verify anything."""

_FETCH_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 5.0
"""Least seconds between two fetches for unknown key ids, as anyone can invent key ids."""

_MOST_KNOWN: Final = 4096

_CAUSES: Final = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
"""Exceptions of PyJWT for malformed tokens and claims of the wrong type."""


class FileKeys:
    """Keys from a JWKS file, reloaded when it changes; the constructor raises `OSError` or `ValueError`."""

    def __init__(self, path: Path) -> None:
        def read() -> Keys:
            try:
                return parsed(json.loads(path.read_bytes()))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path} is no JWKS: {error}") from None

        self._keys = FromFiles("the keys of tokens", [path], read)

    async def get(self, kid: str | None) -> Keys:  # noqa: ARG002 - the keys of a URL need it
        """Return the keys; a new object whenever they have changed."""
        return self._keys.get()


class UrlKeys:
    """Keys from a JWKS URL; if a fetch fails, the earlier keys stay.

    The keys are fetched every `every` seconds, and earlier if a token names an unknown key id.
    """

    def __init__(self, url: str, every: float) -> None:
        self._client = PyJWKClient(url, cache_jwk_set=False, timeout=_FETCH_SECONDS)
        self._every = every
        self._keys: Keys = {}
        self._tried = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._once = LogOnce(log)

    async def get(self, kid: str | None) -> Keys:
        """Return the keys, fetched again if `kid` is unknown; raises `KeysNotLoadedError` if no key could be read."""
        age = time.monotonic() - self._tried
        if kid not in self._keys and (self._fetching is not None or age > _PAUSE_SECONDS):
            # Shielded: a caller that disconnects must not cancel the fetch that others wait for.
            await asyncio.shield(self._fetched())
        elif age > self._every:
            self._fetched()
        if not self._keys:
            raise KeysNotLoadedError
        return self._keys

    def _fetched(self) -> "asyncio.Task[None]":
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch(), name="fetching keys of tokens")
        return self._fetching

    async def _fetch(self) -> None:
        try:
            self._keys = parsed(await asyncio.to_thread(self._client.fetch_data))
            self._once.succeeded()
        except Exception as error:  # noqa: BLE001 - whatever a server answers, the keys from before are good
            # Reported as an `OSError`, which is expected: one line, without a traceback.
            self._once.failed(OSError(str(error)), "keys of tokens could not be fetched, those from before stay")
        finally:
            self._tried, self._fetching = time.monotonic(), None


def keys_of(where: str, every: float) -> FileKeys | UrlKeys:
    """Return the keys of a path or URL; the keys of a URL are fetched again every `every` seconds."""
    return UrlKeys(where, every) if "://" in where else FileKeys(Path(where))


def parsed(document: Any) -> Keys:
    """Return the usable public keys of a decoded JWKS document; raises `ValueError` if no key is usable."""
    entries = document.get("keys") if isinstance(document, dict) else None
    found: Keys = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("kty") in _TYPES and entry.get("use", "sig") == "sig":
            kid = entry.get("kid")
            try:
                found[kid if isinstance(kid, str) else None] = PyJWK(entry)
            except (PyJWTError, ValueError, TypeError, AttributeError):  # its numbers may be of any type
                log.warning("a key of tokens cannot be used: kid %.64r, kty %.16r", kid, entry["kty"])
    if not found:
        raise ValueError("it holds no public key that can be used")
    if len(found) == 1:
        found[None] = next(iter(found.values()))
    return found


@dataclass(frozen=True)
class Token:
    """The claims of a verified token; `ends` is its expiry in Unix time, leeway included."""

    subject: str
    scopes: frozenset[str]
    ends: float


class Tokens:
    """Verifies tokens, and caches verified ones until they expire or the keys change."""

    def __init__(self, config: AuthConfig, keys: FileKeys | UrlKeys) -> None:
        self._config, self._keys = config, keys
        self._known: OrderedDict[bytes, tuple[str | None, Token]] = OrderedDict()
        self._of: Keys | None = None

    async def verified(self, token: str) -> Token:
        """Verify a token and return its claims.

        Raises `KeysNotLoadedError`, or one of the token errors of `weir.serving.errors` if the token is refused.
        """
        # Only the hash is cached, so that a memory dump does not hold a collection of tokens.
        name = sha256(token.encode(errors="surrogatepass")).digest()
        known = self._known.get(name)
        kid = _kid(token) if known is None else known[0]
        keys = await self._keys.get(kid)
        if keys is not self._of:
            self._known.clear()
            self._of, known = keys, None
        if known is None:
            known = self._known[name] = kid, self._read(token, keys, kid)
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        found = known[1]
        if found.ends <= time.time():
            raise TokenExpiredError
        return found

    def _read(self, token: str, keys: Keys, kid: str | None) -> Token:
        if kid not in keys:
            raise TokenInvalidError("its key is not among those of serving.auth.jwks")
        claims = self._claims(token, keys[kid])
        subject, scopes = _at(claims, self._config.subject_claim), _at(claims, self._config.scope_claim)
        if not isinstance(subject, str) or not subject:
            raise TokenInvalidError(f"it has no claim {self._config.subject_claim}")
        words = scopes.split() if isinstance(scopes, str) else scopes if isinstance(scopes, list) else []
        granted = frozenset(word for word in words if isinstance(word, str))
        return Token(subject, granted, claims["exp"] + self._config.leeway_seconds)

    def _claims(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        config = self._config
        try:
            # The key determines the algorithm, never the token's header.
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=config.algorithms,
                audience=config.audience,
                issuer=config.issuer,
                leeway=config.leeway_seconds,
                options={"require": ["exp", "iss", "aud"]},
            )
        except _CAUSES as error:
            raise _refusal(error) from None
        return claims


_REFUSALS: Final[dict[type[Exception], type[RequestError]]] = {
    jwt.ExpiredSignatureError: TokenExpiredError,
    jwt.ImmatureSignatureError: TokenNotYetValidError,
    jwt.InvalidAudienceError: TokenAudienceError,
    jwt.InvalidIssuerError: TokenIssuerError,
}


def _refusal(error: Exception) -> RequestError:
    known = _REFUSALS.get(type(error))
    if known is not None:
        return known()
    if isinstance(error, jwt.MissingRequiredClaimError):
        return TokenInvalidError(f"it has no claim {error.claim}")
    if isinstance(error, jwt.InvalidAlgorithmError):
        return TokenInvalidError("its algorithm is not one of serving.auth.algorithms, or not that of its key")
    return TokenInvalidError("it cannot be read, or its signature is wrong")


def _kid(token: str) -> str | None:
    """Return the key id in the header of a token that is not verified yet."""
    try:
        kid = jwt.get_unverified_header(token).get("kid")
    except _CAUSES as error:
        raise _refusal(error) from None
    return kid if isinstance(kid, str) else None


def _at(claims: dict[str, Any], name: str) -> Any:
    """Return the claim `name`; if there is none, the nested claim at the path that `name` spells with dots."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found
