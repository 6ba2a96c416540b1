"""gRPC interceptors that authenticate callers and check rights. Health checks stay open: probes have no tokens."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from ssl import DER_cert_to_PEM_cert
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.access.access import Access, Caller
from weir.serving.access_config import Right
from weir.serving.errors import RequestError
from weir.serving.rpc.instrumentation import WrappingInterceptor, names_of, unary
from weir.serving.rpc.reflection import REFLECTION_V1

__all__ = ["AccessInterceptor", "RequestRightsInterceptor", "keep_headers_out_of_logs", "rights_of"]

Refuse = Callable[[RequestError, Any], Awaitable[None]]

_RETRIEVAL: Final = pb.DESCRIPTOR.services_by_name["RetrievalService"]
_REFLECTION: Final = {reflection.SERVICE_NAME, REFLECTION_V1}

_CLIENT: Final = "x-weir-client-certificate-bin"
"""Header with the client's certificate, set by the compiled front; the front removes it from callers' headers."""

_caller: ContextVar[Caller] = ContextVar("caller")
"""Caller of the call that the current task answers."""


def rights_of(request: Any) -> tuple[Right, ...]:
    """Return the rights ``exact`` and ``pin`` that a request needs in addition to the right to call its method."""
    rights: list[Right] = []
    if isinstance(request, pb.RetrieveRequest) and request.params.exact:
        rights.append("exact")
    if isinstance(request, pb.RetrieveRequest | pb.EmbedRequest) and request.bundle_version:
        rights.append("pin")
    return tuple(rights)


def keep_headers_out_of_logs() -> None:
    """Drop gRPC's log lines about headers that are not UTF-8, because they may show most of a token."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_header)


def _is_no_header(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Invalid encoding on")


class AccessInterceptor(WrappingInterceptor):
    """Authenticates calls before their request is decoded; `refuse` gets the error and the context, and ends the call.

    Behind a compiled front (`has_front`), the client's certificate comes in a header from that front.
    """

    def __init__(self, access: Access, refuse: Refuse, *, has_front: bool = False) -> None:
        super().__init__()
        self._access, self._refuse, self._has_front = access, refuse, has_front

    def wrapped(self, handler: Any, path: str) -> Any:
        """Return a handler that authenticates the call first; health checks keep their handler."""
        service, method = names_of(path)
        if service == health.SERVICE_NAME:
            return handler
        right: Any = "reflection" if service in _REFLECTION else method if service == _RETRIEVAL.full_name else service
        codecs = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._one(handler.unary_unary, right), **codecs)
        return grpc.stream_stream_rpc_method_handler(self._many(handler.stream_stream, right), **codecs)

    def _one(self, inner: Callable[[Any, Any], Awaitable[Any]], right: Right) -> Any:
        async def handle(request: Any, context: Any) -> Any:
            await self._admit(context, right)
            return await inner(request, context)

        return handle

    def _many(self, inner: Callable[[Any, Any], AsyncIterator[Any]], right: Right) -> Any:
        async def handle(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            await self._admit(context, right)
            async for answer in inner(requests, context):
                yield answer

        return handle

    async def _admit(self, context: Any, right: Right) -> None:
        metadata = context.invocation_metadata() or ()
        authorization = [value for key, value in metadata if key == "authorization"]
        if self._has_front:
            certificate = [DER_cert_to_PEM_cert(value).encode() for key, value in metadata if key == _CLIENT]
        else:
            certificate = context.auth_context().get("x509_pem_cert")
        try:
            caller = await self._access.admit(authorization, certificate[0] if certificate else None, right)
        except RequestError as error:
            await self._refuse(error, context)
        else:
            _caller.set(caller)


class RequestRightsInterceptor(WrappingInterceptor):
    """Checks the rights that depend on the decoded request; comes after `AccessInterceptor` and decoding."""

    def __init__(self, refuse: Refuse) -> None:
        super().__init__()
        self._refuse = refuse

    def wrapped(self, handler: Any, path: str) -> Any:
        """Return a handler that checks the request's rights first; methods of other services keep their handler."""
        if names_of(path)[0] != _RETRIEVAL.full_name:
            return handler
        inner = handler.unary_unary

        async def handle(request: Any, context: Any) -> Any:
            try:
                _caller.get().require(*rights_of(request))
            except RequestError as error:
                await self._refuse(error, context)
            return await inner(request, context)

        return unary(handler, handle)
