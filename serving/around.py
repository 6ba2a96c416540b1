"""Puts something around every unary call over gRPC, such as the span of its trace."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

__all__ = ["AroundInterceptor"]

Handler = Callable[[Any, Any], Awaitable[Any]]


class AroundInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handlers of unary calls; `around` is given a handler, its service and its method."""

    def __init__(self, around: Callable[[Handler, str, str], Handler]) -> None:
        self._around = around
        self._handlers: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler, which is made once."""
        path = handler_call_details.method
        handler = self._handlers.get(path)
        if handler is None and (found := await continuation(handler_call_details)) is not None:
            handler = self._handlers[path] = self._wrapped(found, path)
        return handler

    def _wrapped(self, handler: Any, path: str) -> Any:
        if handler.unary_unary is None:
            return handler
        service, _, method = path.removeprefix("/").partition("/")
        return grpc.unary_unary_rpc_method_handler(
            self._around(handler.unary_unary, service, method),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
