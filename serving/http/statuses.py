"""Errors over HTTP: the `google.rpc.Status` of the gRPC error as JSON, with the HTTP status of its code."""

import math
from collections.abc import Mapping
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from google.rpc import code_pb2, error_details_pb2, status_pb2

from weir.serving.access.errors import AUTHENTICATE
from weir.serving.errors import RequestError
from weir.serving.http.hosts import is_loopback, is_own_host
from weir.serving.http.messages import as_json
from weir.serving.status import details_of

__all__ = ["refusal_of", "refusals", "response_of"]

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
"""gRPC codes of aiohttp's errors before a call starts, by HTTP status; every other one is INVALID_ARGUMENT."""


def response_of(status: status_pb2.Status, headers: Mapping[str, str], http: int | None = None) -> web.Response:
    """Return the HTTP answer for an error; `http` overrides the HTTP status of its code."""
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
    """Return the middleware that converts errors to JSON answers, for a server that listens on `host`.

    Shared by the gateway and the page; includes requests that fail before a call starts.
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
    """Refuse requests that a foreign web page can make a browser send: wrong Host on loopback, POST without JSON."""
    if is_loopback(host) and not is_own_host(request.host):
        raise web.HTTPForbidden(text=f"Host: {request.host[:128]} does not name this machine; use {host}")
    if request.method == "POST" and request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="the body is JSON: send Content-Type: application/json")


def _paths(application: web.Application) -> str:
    routes = [f"{route.method} {route.resource.canonical}" for route in application.router.routes() if route.resource]
    return f"there are {', '.join(one for one in routes if not one.startswith('HEAD'))}"
