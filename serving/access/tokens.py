"""Verify bearer tokens (JWT, RFC 7519 and 8725): signature, issuer, audience and expiry; read subject and scopes."""

import time
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import jwt

from weir.serving.access.config import AuthConfig
from weir.serving.access.errors import (
    TokenAudienceError,
    TokenExpiredError,
    TokenInvalidError,
    TokenIssuerError,
    TokenNotYetValidError,
)
from weir.serving.access.keys import FileKeys, Keys, UrlKeys
from weir.serving.errors import RequestError

__all__ = ["Token", "Tokens"]

_MOST_KNOWN: Final = 4096


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

        Raises `KeysNotLoadedError` and the errors of tokens in `weir.serving.access.errors`.
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


_CAUSES: Final = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
"""Exceptions of PyJWT for malformed tokens and claims of the wrong type."""

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
    """Return the key id in a token's header, which is not verified yet."""
    try:
        kid = jwt.get_unverified_header(token).get("kid")
    except _CAUSES as error:
        raise _refusal(error) from None
    return kid if isinstance(kid, str) else None


def _at(claims: dict[str, Any], name: str) -> Any:
    """Return a claim by its name, which may contain dots, or else by its dotted path."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found
