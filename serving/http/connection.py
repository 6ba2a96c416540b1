"""HTTP connections, with time limits for the headers, body and answer of each request.

Invalid HTTP is answered with a JSON error, and neither logged nor echoed: it may hold a token. A caller that sends or
reads slowly, or not at all, holds a connection for a limited time: `HEAD_SECONDS` from the first byte of a request to
the last of its headers, `BODY_SECONDS` for its body, `ANSWER_SECONDS` for the answer. The service's own time between
body and answer is not limited here.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from google.rpc import code_pb2, status_pb2

from weir.serving.errors import BodyLateError
from weir.serving.http.messages import response_of

__all__ = ["Bodies", "Connection", "connections"]

HEAD_SECONDS: Final = 10.0
BODY_SECONDS: Final = 30.0
ANSWER_SECONDS: Final = 30.0

_MOST_BODIES: Final = 256
"""Most bodies awaited at once: they hold memory and connections."""

_LINGERING_SECONDS: Final = 1.0
"""Seconds for which the rest of a refused body is read, so that its sender sees the answer."""


class Bodies:
    """Reads the bodies of requests, in one event loop.

    Each body must arrive within `seconds` (None: `BODY_SECONDS`). If more than `most` bodies are awaited, the one
    awaited for longest is refused, so that callers that send only headers cannot lock out others.
    """

    def __init__(self, most: int = _MOST_BODIES, seconds: float | None = None) -> None:
        self._most, self._seconds = most, seconds
        self._waiting: dict[asyncio.Timeout, None] = {}

    async def read(self, request: web.Request) -> bytes:
        """Return the body of a request.

        Raises `BodyLateError`, and the errors of aiohttp: `RequestPayloadError`, `HTTPRequestEntityTooLarge`, and
        `ConnectionError` if the caller has disconnected.
        """
        try:
            async with asyncio.timeout(BODY_SECONDS if self._seconds is None else self._seconds) as limit:
                self._waiting[limit] = None
                try:
                    if len(self._waiting) > self._most:
                        oldest = next(iter(self._waiting))
                        del self._waiting[oldest]
                        oldest.reschedule(asyncio.get_running_loop().time())
                    return await request.read()
                finally:
                    self._waiting.pop(limit, None)
        except TimeoutError:
            raise BodyLateError from None


class Connection(web.RequestHandler):
    """An HTTP connection in the running event loop; it is closed after `idle_seconds` without a request."""

    __slots__ = ("_head",)

    def __init__(self, server: web.Server, idle_seconds: float) -> None:
        self._head: asyncio.TimerHandle | None = None
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=idle_seconds,
            lingering_time=_LINGERING_SECONDS,
            # None: no request log, as in aiohttp's own runner.
            access_log=None,  # type: ignore[arg-type]
        )

    def data_received(self, data: bytes) -> None:
        """Receive bytes, and start the time limit for headers if they are still incomplete."""
        super().data_received(data)
        # Run after aiohttp has started to handle the complete requests.
        asyncio.get_running_loop().call_soon(self._watch_head)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Cancel the time limit for headers."""
        if self._head is not None:
            self._head.cancel()
            self._head = None
        super().connection_lost(exc)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the rest of an answer; a caller that does not read it in time is disconnected."""
        late = asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._cut)
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            late.cancel()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that is not valid HTTP with a JSON error; aiohttp handles exceptions of handlers."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        problem = "a line or a header of it is too long" if isinstance(exc, LineTooLong) else "it cannot be read"
        found = status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message=f"the request is no HTTP/1.1: {problem}")
        answer = response_of(found, {}, status)
        answer.force_close()
        return answer

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log an exception, except that of a broken body, which is the caller's fault."""
        if not isinstance(kw.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kw)

    def _watch_head(self) -> None:
        """Start the time limit for headers if aiohttp still waits for the rest of them, else stop it."""
        waits = self.transport is not None and self._waiter is not None and not self._waiter.done()
        if waits and self._head is None:
            self._head = asyncio.get_running_loop().call_later(HEAD_SECONDS, self._cut)
        elif not waits and self._head is not None:
            self._head.cancel()
            self._head = None

    def _cut(self) -> None:
        """Abort the connection at once; `close` would wait until the caller has read the remaining bytes."""
        if self.transport is not None:
            self.transport.abort()


def connections(server: web.Server, idle_seconds: float, most: int) -> Callable[[], asyncio.BaseProtocol]:
    """Return a protocol factory for `server`; connections beyond `most` are closed, as each is an open file."""

    def connected() -> asyncio.BaseProtocol:
        return _Refused() if len(server.connections) >= most else Connection(server, idle_seconds)

    return connected


class _Refused(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.abort()  # type: ignore[attr-defined]  # of a stream
