"""Authentication and authorisation of calls by tokens, certificates and rules; independent of the transport."""

from collections.abc import Sequence
from dataclasses import dataclass

from weir.serving.access.certificates import names_of
from weir.serving.access.config import AuthConfig, Right, Rule
from weir.serving.access.errors import CallRateError, NotAllowedError, TokenInvalidError, TokenMissingError
from weir.serving.access.keys import keys_of
from weir.serving.access.rates import Rates
from weir.serving.access.tokens import Token, Tokens
from weir.serving.access_log import note

__all__ = ["Access", "Caller"]


@dataclass(frozen=True)
class Caller:
    """An authenticated caller: its name, its rights, and when its token expires (Unix time)."""

    name: str
    rights: frozenset[Right]
    ends: float = float("inf")

    def require(self, *rights: Right) -> None:
        """Raise `NotAllowedError` if a right is missing."""
        for right in rights:
            if right not in self.rights:
                raise NotAllowedError(right)


class Access:
    """Authenticates callers, and checks their rights and rates; one per process, as it counts their calls.

    `asks`: whether callers must authenticate at all. Raises `OSError` or `ValueError` if a key file cannot be read.
    """

    def __init__(self, config: AuthConfig, *, certificates: bool = False) -> None:
        self._config = config
        self._tokens = None if config.jwks is None else Tokens(config, keys_of(config.jwks, config.jwks_seconds))
        self._rates = None if config.calls_per_second is None else Rates(config.calls_per_second, config.burst)
        self.asks = certificates or self._tokens is not None

    async def admit(self, authorization: Sequence[str], certificate: bytes | None, *rights: Right) -> Caller:
        """Authenticate a call, check its rate and rights, and return its caller.

        Parameters
        ----------
        authorization
            The call's ``authorization`` headers.
        certificate
            The client's certificate (PEM), verified by TLS.

        Raises
        ------
        RequestError
            Those of `weir.serving.access.errors`.
        """
        caller = await self._caller(authorization, certificate)
        note(caller=caller.name)
        # Counted before the rights are checked: refused calls use up the rate as well.
        if self._rates is not None and (waits := self._rates.take(caller.name)):
            raise CallRateError(self._rates.per_second, waits)
        caller.require(*rights)
        return caller

    async def _caller(self, authorization: Sequence[str], certificate: bytes | None) -> Caller:
        names = () if certificate is None else names_of(certificate)
        token = None
        if self._tokens is not None and authorization:
            token = await self._tokens.verified(_bearer(authorization))
        if token is not None:
            return Caller(f"token {token.subject}", self._rights(token, names), token.ends)
        # If tokens are configured, a certificate without a token only counts if a rule names it.
        rights = self._rights(None, names)
        if self._tokens is not None and not rights:
            raise TokenMissingError
        return Caller(f"certificate {', '.join(names)}", rights)

    def _rights(self, token: Token | None, names: Sequence[str]) -> frozenset[Right]:
        known = token is not None or self._tokens is None
        return frozenset(
            right for rule in self._config.allow if _is_for(rule, token, names, known=known) for right in rule.to
        )


def _is_for(rule: Rule, token: Token | None, names: Sequence[str], *, known: bool) -> bool:
    if not (rule.scopes or rule.subjects or rule.certificates):
        return known
    if not set(rule.certificates).isdisjoint(names):
        return True
    return token is not None and (token.subject in rule.subjects or not token.scopes.isdisjoint(rule.scopes))


def _bearer(authorization: Sequence[str]) -> str:
    if len(authorization) != 1:
        raise TokenInvalidError("there is more than one")
    scheme, _, token = authorization[0].partition(" ")
    if scheme.lower() != "bearer":
        raise TokenInvalidError("its scheme is not Bearer")
    return token.strip()
