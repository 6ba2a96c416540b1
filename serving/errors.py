"""Errors of requests, calls and bundles; their messages repeat little of a caller's text, and never a token."""

from dataclasses import dataclass
from typing import Final

from weir.contracts.base.errors import IncompatibleBundleError

__all__ = [
    "AUTHENTICATE",
    "AnswerTooLargeError",
    "BodyLateError",
    "BundleVersionNotLoadedError",
    "CallRateError",
    "DeadlinePassedError",
    "IncompatibleBundleError",
    "InvalidRequestError",
    "KeysNotLoadedError",
    "NoBundleError",
    "NoCatalogueError",
    "NoTimeLeftError",
    "NotAllowedError",
    "NotJsonError",
    "QueueFullError",
    "RequestError",
    "ShuttingDownError",
    "TokenAudienceError",
    "TokenExpiredError",
    "TokenInvalidError",
    "TokenIssuerError",
    "TokenMissingError",
    "TokenNotYetValidError",
    "UndecodableRequestError",
    "Violation",
]


_LONGEST_ECHO: Final = 128
"""Most characters of a request that an error repeats: errors travel in headers, which are limited."""

_LONGEST_PROBLEM: Final = 512
"""Most characters of a problem in an error."""

_LONGEST_PATHS: Final = 640
"""Most bytes of the paths of all violations of a request. They may hold names from the caller, and each path appears
three times, escaped, in headers of at most 8 KiB."""


@dataclass(frozen=True)
class Violation:
    """One problem of a request: the path of the field (``queries[3].embedding``) and what is wrong with it."""

    field: str
    problem: str


class RequestError(Exception):
    """A refused request; `reason` is the stable name of the refusal, on which clients may rely."""

    reason = "INTERNAL"

    @property
    def metadata(self) -> dict[str, str]:
        """Facts about the refusal for programs, as strings."""
        return {}


class InvalidRequestError(RequestError):
    """The request is invalid; `violations` lists its first problems, and `more` counts the others."""

    reason = "INVALID_REQUEST"

    def __init__(self, violations: list[Violation], more: int = 0) -> None:
        most = _LONGEST_PATHS // max(len(violations), 1)
        self.violations = [Violation(_cut(violation.field, most), violation.problem) for violation in violations]
        self.more = more
        listed = [": ".join(filter(None, (violation.field, violation.problem))) for violation in self.violations]
        super().__init__("; ".join([*listed, *([f"and {more} more problems"] if more else [])]))


class UndecodableRequestError(RequestError):
    """The request cannot be decoded as a message of its type."""

    reason = "UNDECODABLE"

    def __init__(self, size: int) -> None:
        super().__init__(f"the request's {size} bytes are no message of this method's type: compare the .proto files")


class NotJsonError(RequestError):
    """The body of the request is not its method's message as JSON."""

    reason = "UNDECODABLE"

    def __init__(self, problem: str) -> None:
        super().__init__(f"the body is no JSON of this method: {problem[:_LONGEST_PROBLEM]}")


class BodyLateError(RequestError):
    """The body of an HTTP request did not arrive in time, or gave way to newer requests."""

    reason = "BODY_LATE"

    def __init__(self) -> None:
        super().__init__("the body of the request did not come in time: send it at once behind the headers")


class NoCatalogueError(RequestError):
    """The request uses tags, but no catalogue with the items' tags is loaded."""

    reason = "NO_CATALOGUE"

    def __init__(self, fields: list[str]) -> None:
        why = "the server has no catalogue (the setting `catalogue`), or could not read it yet"
        super().__init__(f"{', '.join(fields)}: {why}; filter.allowed_item_ids works without one")
        self.fields = fields

    @property
    def metadata(self) -> dict[str, str]:
        """The fields of the request that use tags."""
        return {"fields": ",".join(self.fields)}


class AnswerTooLargeError(RequestError):
    """The answer has `size` bytes, more than the server sends, because client libraries refuse larger messages."""

    reason = "ANSWER_TOO_LARGE"

    def __init__(self, size: int, most: int) -> None:
        super().__init__(
            f"the answer has {size:,} bytes, at most {most:,} are sent (GetInfo, limits.max_answer_bytes): ask for "
            "fewer queries in a request, or lower k; for more, set serving.limits.max_answer_bytes at the server and "
            "grpc.max_receive_message_length at its clients"
        )
        self.size, self.most = size, most

    @property
    def metadata(self) -> dict[str, str]:
        """The answer's size and the most that the server sends, in bytes."""
        return {"answer_bytes": str(self.size), "max_answer_bytes": str(self.most)}


class QueueFullError(RequestError):
    """The queue is full: `waiting` queries (or other `things`) wait, and the queue takes at most `limit`."""

    reason = "QUEUE_FULL"

    def __init__(self, waiting: int, limit: int, retry_after: float, things: str = "queries") -> None:
        super().__init__(f"{waiting} {things} are waiting, at most {limit} may; try again in {retry_after} s")
        self.retry_after = retry_after


class NoTimeLeftError(QueueFullError):
    """The call was refused unread, because behind the calls in progress it would miss its deadline."""

    def __init__(self, retry_after: float) -> None:
        RequestError.__init__(
            self, f"too many calls are under way to answer this one before its deadline; try again in {retry_after} s"
        )
        self.retry_after = retry_after


class NoBundleError(RequestError):
    """No bundle is loaded: none is promoted, or `promoted` is still being loaded or failed to load."""

    reason = "NO_BUNDLE"

    def __init__(self, promoted: str | None = None) -> None:
        waits = f"it is reading {promoted}" if promoted else "none is promoted yet"
        super().__init__(f"no bundle is loaded: {waits}; the server answers once it has read the promoted one")
        self.promoted = promoted

    @property
    def metadata(self) -> dict[str, str]:
        """The promoted version, if there is one."""
        return {"promoted_version": self.promoted} if self.promoted else {}


class ShuttingDownError(RequestError):
    """The server is stopping and takes no more requests."""

    reason = "SHUTTING_DOWN"

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class BundleVersionNotLoadedError(RequestError):
    """The request is pinned to the bundle version `wanted`, and the version `loaded` is another one."""

    reason = "BUNDLE_VERSION_NOT_LOADED"

    def __init__(self, wanted: str, loaded: str) -> None:
        wanted = wanted if len(wanted) <= _LONGEST_ECHO else f"{wanted[:_LONGEST_ECHO]}..."
        remedy = "pin that, or leave bundle_version empty"
        super().__init__(f"bundle_version {wanted!r} is not loaded; the loaded one is {loaded!r}: {remedy}")
        self.wanted, self.loaded = wanted, loaded

    @property
    def metadata(self) -> dict[str, str]:
        """The wanted and the loaded version."""
        return {"requested_version": self.wanted, "loaded_version": self.loaded}


class DeadlinePassedError(RequestError):
    """The client's deadline passed while the request waited; no search was run."""

    reason = "DEADLINE_PASSED"

    def __init__(self) -> None:
        super().__init__("the deadline passed before the search, which was not done")


def _cut(path: str, most: int) -> str:
    """Return the first bytes of a path, without a partial character."""
    path_bytes = path.encode()
    return path if len(path_bytes) <= most else path_bytes[:most].decode(errors="ignore") + "..."


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
