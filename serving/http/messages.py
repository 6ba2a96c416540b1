"""Messages and errors as JSON, by the mapping of protobuf."""

import json
import math
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from weir.runtime.listening import is_loopback
from weir.serving.errors import AUTHENTICATE, InvalidRequestError, NotJsonError, RequestError, Violation
from weir.serving.rpc.status import details_of

__all__ = ["as_json", "is_own_host", "message_of", "object_of", "refusal_of", "refusals", "response_of"]

Request = TypeVar("Request", bound=Message)

_HTTP: Final = {
    code_pb2.INVALID_ARGUMENT: 400,
    code_pb2.FAILED_PRECONDITION: 400,
    code_pb2.UNAUTHENTICATED: 401,
    code_pb2.PERMISSION_DENIED: 403,
    code_pb2.NOT_FOUND: 404,
    code_pb2.RESOURCE_EXHAUSTED: 429,
    code_pb2.UNIMPLEMENTED: 501,
    code_pb2.UNAVAILABLE: 503,
    code_pb2.DEADLINE_EXCEEDED: 504,
}
"""HTTP statuses by gRPC code, from the comments of google.rpc.Code; every other code is 500."""
_LATE: Final = 408
_BY_REASON: Final = {"BODY_LATE": _LATE}
"""HTTP statuses of errors that only occur over HTTP, by reason."""
_CODES: Final = {
    403: code_pb2.PERMISSION_DENIED,
    404: code_pb2.NOT_FOUND,
    405: code_pb2.UNIMPLEMENTED,
    413: code_pb2.RESOURCE_EXHAUSTED,
    429: code_pb2.RESOURCE_EXHAUSTED,
    503: code_pb2.UNAVAILABLE,
}
"""gRPC codes of aiohttp's errors before a call starts, by HTTP status; for other statuses, INVALID_ARGUMENT."""


def is_own_host(header: str) -> bool:
    """Return whether a request's Host header names this machine's loopback interface.

    The check protects against DNS rebinding: a web page whose domain resolves to 127.0.0.1 could otherwise read data
    meant for this machine only.
    """
    name = header.rpartition(":")[0] if not header.endswith("]") and ":" in header else header
    return is_loopback(name)


_PER_FIELD: Final = 4
"""Commas and brackets allowed per field, including those within its text."""


def message_of(data: bytes, empty: Request, fields: int, numbers: int) -> Request:
    """Fill an `empty` message from JSON and return it; field names are spelt as in JSON or as in the .proto file.

    A body with more than `fields` fields and `numbers` values of vectors is refused before it is parsed, because a
    megabyte of ``[],[],...`` would take a hundred when parsed.

    Raises `NotJsonError` if the body is not this message as JSON, `InvalidRequestError` if it exceeds the limits.
    """
    if sum(map(data.count, (b",", b"{", b"["))) > _PER_FIELD * fields + numbers:
        raise InvalidRequestError([Violation("", f"the request holds more than {fields} fields: see /v1/info, limits")])
    try:
        return json_format.ParseDict(object_of(data or b"{}"), empty)
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from None


def object_of(data: bytes) -> dict[str, Any]:
    """Parse a body as a JSON object; raises `NotJsonError`."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from None
    if not isinstance(found, dict):
        raise NotJsonError(f"an object is wanted, {type(found).__name__} came")
    return found


def as_json(message: Message) -> bytes:
    """Convert a message to JSON; fields without a value are included, so that all answers have the same fields."""
    return json_format.MessageToJson(message, always_print_fields_with_no_presence=True, indent=None).encode()


def response_of(status: status_pb2.Status, headers: Mapping[str, str], http: int | None = None) -> web.Response:
    """Return the HTTP answer for an error; `http` replaces the HTTP status that belongs to its gRPC code."""
    retry, info = error_details_pb2.RetryInfo(), error_details_pb2.ErrorInfo()
    reason = next((info.reason for detail in status.details if detail.Unpack(info)), "")
    answer = web.Response(
        status=http or _BY_REASON.get(reason) or _HTTP.get(status.code, 500),
        body=as_json(status),
        content_type="application/json",
        headers=headers,
    )
    if reason in AUTHENTICATE:
        answer.headers["WWW-Authenticate"] = AUTHENTICATE[reason]
    if answer.status == _LATE:
        answer.force_close()  # otherwise the late body would be read as the next request
    if any(detail.Unpack(retry) for detail in status.details):
        # Retry-After has whole seconds only.
        answer.headers["Retry-After"] = str(math.ceil(retry.retry_delay.ToTimedelta().total_seconds()))
    return answer


def refusal_of(error: RequestError) -> web.Response:
    """Return the HTTP answer for a refused request."""
    return response_of(status_pb2.Status.FromString(details_of(error)), {})


def refusals(host: str) -> Middleware:
    """Return the middleware that converts all errors to JSON answers, for a server that listens on `host`.

    The gateway and the page share it. It also refuses requests that a foreign web page can send.
    """

    @web.middleware
    async def refuse(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check(request, host)
            return await handler(request)
        except RequestError as error:
            return refusal_of(error)
        except web.HTTPException as error:
            text = _paths(request.app) if error.status in {404, 405} else error.text
            status = status_pb2.Status(code=_CODES.get(error.status, code_pb2.INVALID_ARGUMENT), message=text or "")
            allowed = {name: value for name, value in error.headers.items() if name == "Allow"}
            return response_of(status, allowed, error.status)

    return refuse


def _check(request: web.Request, host: str) -> None:
    """Refuse requests that a foreign web page can make a browser send: another Host on loopback, a POST without JSON.

    Raises aiohttp's `HTTPForbidden` or `HTTPUnsupportedMediaType`.
    """
    if is_loopback(host) and not is_own_host(request.host):
        raise web.HTTPForbidden(text=f"Host: {request.host[:128]} does not name this machine; use {host}")
    if request.method == "POST" and request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="the body is JSON: send Content-Type: application/json")


def _paths(application: web.Application) -> str:
    """Return a sentence with the methods and paths of an application."""
    routes = [f"{route.method} {route.resource.canonical}" for route in application.router.routes() if route.resource]
    return f"there are {', '.join(one for one in routes if not one.startswith('HEAD'))}"
