"""Decides by the settings who calls and whether the caller may make the call; the same for every transport."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from weir.serving.access.certificates import names_of
from weir.serving.access.tokens import Token, Tokens, keys_of
from weir.serving.access_config import AuthConfig, Right, Rule
from weir.serving.errors import CallRateError, NotAllowedError, TokenInvalidError, TokenMissingError
from weir.serving.rpc.instrumentation import note

__all__ = ["Access", "Caller", "Rates"]


_MOST_CALLERS: Final = 65_536
"""Most callers whose calls are counted."""


class Rates:
    """Token buckets that limit the call rate of each caller.

    At most 65,536 callers have a bucket; beyond that the bucket unused for longest is dropped, and its caller starts
    with a full bucket again.

    Parameters
    ----------
    per_second
        Calls per second that refill each bucket.
    burst
        Most calls that a bucket holds.
    now
        The clock, in seconds.
    """

    def __init__(self, per_second: float, burst: int, now: Callable[[], float] = time.monotonic) -> None:
        self.per_second = per_second
        self._burst, self._now = burst, now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """Take a call from a caller's bucket and return 0; if the bucket is empty, return the seconds to wait."""
        now = self._now()
        held, filled = self._buckets.pop(caller, (float(self._burst), now))
        held = min(self._burst, held + (now - filled) * self.per_second)
        waits = max(0.0, 1 - held) / self.per_second
        self._buckets[caller] = (held if waits else held - 1, now)
        if len(self._buckets) > _MOST_CALLERS:
            self._buckets.popitem(last=False)
        return waits


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
    """Authenticates callers, and checks their rights and call rates.

    A process has a single `Access`, which counts the calls of each caller. `asks`: whether callers must authenticate at
    all. Raises `OSError` or `ValueError` if a key file cannot be read.
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
            If the token is missing or refused, a right is missing, or the caller exceeds its rate.
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
    """Return whether a rule applies to a caller with this token and these certificate names.

    A rule without conditions applies to every `known` caller.
    """
    if not (rule.scopes or rule.subjects or rule.certificates):
        return known
    if not set(rule.certificates).isdisjoint(names):
        return True
    return token is not None and (token.subject in rule.subjects or not token.scopes.isdisjoint(rule.scopes))


def _bearer(authorization: Sequence[str]) -> str:
    """Return the bearer token in the ``authorization`` headers; raises `TokenInvalidError`."""
    if len(authorization) != 1:
        raise TokenInvalidError("there is more than one")
    scheme, _, token = authorization[0].partition(" ")
    if scheme.lower() != "bearer":
        raise TokenInvalidError("its scheme is not Bearer")
    return token.strip()
