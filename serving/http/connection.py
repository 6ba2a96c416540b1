"""A connection over HTTP. What is no HTTP is answered in JSON, and neither logged nor repeated: it may hold a token."""

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from google.rpc import code_pb2, status_pb2

from weir.serving.http.statuses import response_of

__all__ = ["Connection"]


class Connection(web.RequestHandler):
    """Serves the requests of one connection, in the event loop that runs; it ends after `idle_seconds` without one."""

    __slots__ = ()

    def __init__(self, server: web.Server, idle_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        # Without a log of requests, as aiohttp's own runner has it for None.
        super().__init__(server, loop=loop, keepalive_timeout=idle_seconds, access_log=None)  # type: ignore[arg-type]

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that did not become a call; what a handler raises is left to aiohttp, which logs it."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        problem = "a line or a header of it is too long" if isinstance(exc, LineTooLong) else "it cannot be read"
        found = status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message=f"the request is no HTTP/1.1: {problem}")
        answer = response_of(found, {}, status)
        answer.force_close()
        return answer

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log a fault of the server's own; a broken body, which aiohttp reads to its end after the answer, is none."""
        if not isinstance(kw.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kw)
