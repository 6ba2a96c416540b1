"""Errors of authentication, rights and rates. Their messages never repeat what the caller sent."""

from typing import Final

from weir.serving.errors import RequestError

__all__ = [
    "AUTHENTICATE",
    "CallRateError",
    "KeysNotLoadedError",
    "NotAllowedError",
    "TokenAudienceError",
    "TokenExpiredError",
    "TokenInvalidError",
    "TokenIssuerError",
    "TokenMissingError",
    "TokenNotYetValidError",
]


class TokenMissingError(RequestError):
    """The call has no token, and no rule allows its certificate alone."""

    reason = "TOKEN_MISSING"

    def __init__(self) -> None:
        super().__init__("a token is needed: send `authorization: Bearer ...`")


class TokenInvalidError(RequestError):
    """The token is malformed, or not signed by a trusted key."""

    reason = "TOKEN_INVALID"

    def __init__(self, problem: str) -> None:
        super().__init__(f"the token is not valid: {problem}")


class TokenExpiredError(RequestError):
    """The token has expired."""

    reason = "TOKEN_EXPIRED"

    def __init__(self) -> None:
        super().__init__("the token has expired: get another one")


class TokenNotYetValidError(RequestError):
    """The token is not valid yet."""

    reason = "TOKEN_NOT_YET_VALID"

    def __init__(self) -> None:
        super().__init__("the token is not valid yet: compare the clocks of its issuer and of this server")


class TokenAudienceError(RequestError):
    """The token is for another service."""

    reason = "TOKEN_WRONG_AUDIENCE"

    def __init__(self) -> None:
        super().__init__("the token is for another service: its `aud` must name this one (serving.auth.audience)")


class TokenIssuerError(RequestError):
    """The token is from another issuer."""

    reason = "TOKEN_WRONG_ISSUER"

    def __init__(self) -> None:
        super().__init__("the token is from another issuer: its `iss` must be that of serving.auth.issuer")


class NotAllowedError(RequestError):
    """The caller is authenticated, but lacks the right."""

    reason = "NOT_ALLOWED"

    def __init__(self, right: str) -> None:
        super().__init__(f"this caller may not do this: no rule of serving.auth.allow gives it {right}")
        self.right = right

    @property
    def metadata(self) -> dict[str, str]:
        """The missing right."""
        return {"right": self.right}


class CallRateError(RequestError):
    """The caller exceeds its call rate; other callers are not affected."""

    reason = "CALL_RATE_EXCEEDED"

    def __init__(self, per_second: float, retry_after: float) -> None:
        super().__init__(f"this caller may make {per_second:g} calls per second; try again in {retry_after:.2f} s")
        self.retry_after = retry_after


class KeysNotLoadedError(RequestError):
    """The keys that sign tokens have not been read yet."""

    reason = "KEYS_NOT_LOADED"

    def __init__(self) -> None:
        super().__init__("the keys that sign tokens could not be fetched yet; the server's log says why")


AUTHENTICATE: Final = {
    TokenMissingError.reason: 'Bearer realm="weir"',
    **dict.fromkeys(
        (
            error.reason
            for error in (
                TokenInvalidError,
                TokenExpiredError,
                TokenNotYetValidError,
                TokenAudienceError,
                TokenIssuerError,
            )
        ),
        'Bearer realm="weir", error="invalid_token"',
    ),
    NotAllowedError.reason: 'Bearer realm="weir", error="insufficient_scope"',
}
"""Values of the HTTP header ``WWW-Authenticate`` (RFC 6750), by reason."""
