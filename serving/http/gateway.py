"""The retrieval service over HTTP; the .proto file maps each path to a method."""

import asyncio
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.resources import files
from typing import Any, Final, NoReturn, TypeVar, cast

import grpc
from aiohttp import web
from google.api import annotations_pb2
from google.protobuf import message_factory
from google.protobuf.message import Message
from google.rpc import status_pb2

from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.runtime.listening import in_url, listening
from weir.serving.access.access import Access, Caller
from weir.serving.access.certificates import http_context
from weir.serving.access.interceptor import rights_of
from weir.serving.access_config import Right
from weir.serving.config import ServingConfig
from weir.serving.errors import NotJsonError, RequestError
from weir.serving.http.connection import HEAD_SECONDS, Bodies, connections
from weir.serving.http.messages import as_json, message_of, refusals, response_of
from weir.serving.rpc.admission import ADMITTED, Admission
from weir.serving.rpc.decoding import OffloadExecutor
from weir.serving.rpc.instrumentation import HandlerWrapper, MetricsInterceptor
from weir.serving.rpc.service import RetrievalService
from weir.serving.rpc.status import DETAILS_KEY

__all__ = ["AbortedError", "Gateway", "HttpCall", "seconds_of"]

T = TypeVar("T")

TIMEOUT: Final = "Grpc-Timeout"
"""Request header with the caller's timeout, as in gRPC."""
_TIMEOUT: Final = re.compile(r"(\d{1,8})([HMSmun])")
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class AbortedError(Exception):
    """The service has aborted the call; `status` is the `google.rpc.Status` that gRPC would send."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


class HttpCall:
    """The call context of an HTTP request, with the methods of a gRPC context that the service uses.

    `sent` are headers for the answer.
    """

    def __init__(self, request: web.Request) -> None:
        self._metadata = tuple((name.lower(), value) for name, value in request.headers.items())
        seconds = seconds_of(request.headers.get(TIMEOUT, ""))
        self._ends = None if seconds is None else time.monotonic() + seconds
        self._connection = request.transport
        self._code: grpc.StatusCode | None = None
        self.sent: dict[str, str] = {}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the request's headers, with names in lower case."""
        return self._metadata

    def certificate(self) -> bytes | None:
        """Return the client's certificate (PEM), verified by TLS; None without one."""
        connection = self._connection and self._connection.get_extra_info("ssl_object")
        found = connection and connection.getpeercert(binary_form=True)
        return ssl.DER_cert_to_PEM_cert(found).encode() if found else None

    async def send_initial_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        """Add headers to the answer."""
        self.sent.update(metadata)

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller's deadline; None without one."""
        return None if self._ends is None else self._ends - time.monotonic()

    def code(self) -> grpc.StatusCode | None:
        """Return the code with which the call was aborted; None if it was not aborted."""
        return self._code

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[tuple[str, bytes]] = ()
    ) -> NoReturn:
        """Raise `AbortedError` with the status in the metadata, or else with this code and text."""
        self._code = code
        status = status_pb2.Status(code=code.value[0], message=details)
        if carried := dict(trailing_metadata).get(DETAILS_KEY):
            status.ParseFromString(carried)
        raise AbortedError(status)


def seconds_of(timeout: str) -> float | None:
    """Return the seconds of a gRPC timeout such as ``200m`` (milliseconds); None if it cannot be parsed."""
    found = _TIMEOUT.fullmatch(timeout)
    return None if found is None else int(found[1]) * _UNITS[found[2]]


SERVICE: Final = pb.DESCRIPTOR.services_by_name["RetrievalService"]
_LARGE: Final = 1 << 14
"""Bytes of JSON up to which the event loop reads or writes a message: about a millisecond."""


class Gateway:
    """The HTTP server of the retrieval service, in the running event loop.

    Parameters
    ----------
    service
        Answers the calls, with the same limits and errors as over gRPC.
    dimension
        Returns the dimension of the served vectors; 0 without a bundle.
    calls
        Counts the calls, together with calls over gRPC.
    aside
        The background thread that decodes large requests and encodes large answers.
    access
        Verifies callers and their rights.
    admission
        Refuses calls that would miss their deadline.
    around
        Wrappers of each method's handler, such as traces and the access log; the first is the outermost.
    """

    def __init__(
        self,
        service: RetrievalService,
        dimension: Callable[[], int],
        calls: MetricsInterceptor,
        aside: OffloadExecutor,
        access: Access,
        *,
        admission: Admission,
        config: ServingConfig,
        around: Sequence[HandlerWrapper] = (),
    ) -> None:
        self._service, self._dimension, self._aside, self._config = service, dimension, aside, config
        self._admission, self._access = admission, access
        application = web.Application(client_max_size=config.max_request_bytes, middlewares=[refusals(config.host)])
        for method in SERVICE.methods:
            rule = method.GetOptions().Extensions[annotations_pb2.http]
            timed = calls.timed(self._called(method), ("unary", SERVICE.full_name, method.name))
            for wrap in reversed(around):
                timed = wrap(timed, SERVICE.full_name, method.name)
            application.router.add_route(rule.WhichOneof("pattern"), rule.post or rule.get, partial(_answer, timed))
        application.router.add_get("/openapi.yaml", _schema)
        # Cancel the handler if the caller disconnects; without this, half a request ends in a traceback.
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=config.grace_seconds)
        self._listeners: list[asyncio.Server] = []
        self._bodies = Bodies()

    async def start(self) -> str:
        """Listen if `http_port` is set; return the address for the log, "" without one. Raises `CannotListenError`."""
        if self._config.http_port is None:
            return ""
        await self._runner.setup()
        loop, tls = asyncio.get_running_loop(), self._config.tls
        secure = None if tls.certificate_file is None else http_context(tls)
        connected = connections(
            cast(web.Server, self._runner.server),  # not None after `setup`
            self._config.max_connection_idle_seconds,
            self._config.max_connections,
        )
        host, shared = self._config.host, self._config.processes > 1
        for opened in listening("HTTP", host, self._config.http_port, shared=shared):
            port = opened.getsockname()[1]
            handshake = HEAD_SECONDS if secure else None
            self._listeners.append(
                await loop.create_server(connected, sock=opened, ssl=secure, ssl_handshake_timeout=handshake)
            )
        return f"{'HTTPS' if secure else 'HTTP'} on {in_url(host)}:{port}, "

    async def stop(self) -> None:
        """Accept no new calls, and close the connections once the calls in progress are answered."""
        for listener in self._listeners:
            listener.close()
        await self._runner.cleanup()

    def _called(self, method: Any) -> Callable[[web.Request, HttpCall], Awaitable[bytes]]:
        """Return the handler of a service method: it checks and decodes the request, and returns the answer as JSON."""
        answer, right = getattr(self._service, method.name), method.name
        empty = message_factory.GetMessageClass(method.input_type)

        async def handle(request: web.Request, call: HttpCall) -> bytes:
            try:
                if right in ADMITTED:
                    self._admission.require_time(call.time_remaining())
                caller = await self._caller(call, right)
                message = await self._read(await self._body(request, call), empty())
                if caller is not None:
                    caller.require(*rights_of(message))
            except RequestError as error:
                await self._service.refuse(error, call)
            response = await answer(message, call)
            return await self._made(partial(as_json, response), response.ByteSize())

        return handle

    async def _body(self, request: web.Request, call: HttpCall) -> bytes:
        try:
            return await self._bodies.read(request)
        except web.RequestPayloadError:
            raise NotJsonError("its encoding is broken") from None
        except ConnectionError:
            await call.abort(grpc.StatusCode.CANCELLED, "the caller has left")

    async def _caller(self, call: HttpCall, right: Right) -> Caller | None:
        """Authenticate the caller and require a right; None if callers need not authenticate."""
        if not self._access.asks:
            return None
        authorization = [value for name, value in call.invocation_metadata() if name == "authorization"]
        return await self._access.admit(authorization, call.certificate(), right)

    async def _read(self, data: bytes, empty: Message) -> Message:
        """Decode a JSON body into an empty message; raises `RequestError`."""
        limits = self._config.limits
        numbers = limits.max_queries * self._dimension()
        if len(data) > _LARGE:
            self._aside.require_room()
        return await self._made(partial(message_of, data, empty, limits.fields, numbers), len(data))

    async def _made(self, make: Callable[[], T], size: int) -> T:
        """Call `make`, in the background thread if the message has many bytes (`size`)."""
        return await self._aside.run(make) if size > _LARGE else make()


async def _answer(handle: Callable[[web.Request, HttpCall], Awaitable[bytes]], request: web.Request) -> web.Response:
    """Handle a request; answer with the JSON that `handle` returns, or with the error it aborted with."""
    call = HttpCall(request)
    try:
        body = await handle(request, call)
    except AbortedError as error:
        return response_of(error.status, call.sent)
    return web.Response(body=body, content_type="application/json", headers=call.sent)


async def _schema(_: web.Request) -> web.Response:
    return web.Response(text=files("weir.retrieval.v1").joinpath("openapi.yaml").read_text(), content_type="text/yaml")
