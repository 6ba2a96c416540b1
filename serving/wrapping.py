"""Interceptors that wrap the handler of each method once, not for each call."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

__all__ = ["Around", "AroundInterceptor", "Handler", "WrappingInterceptor", "names_of", "unary"]

Handler = Callable[[Any, Any], Awaitable[Any]]
Around = Callable[[Handler, str, str], Handler]
"""Takes a handler, its service and its method; returns the wrapped handler."""


class WrappingInterceptor(grpc.aio.ServerInterceptor):
    """Wraps each method's handler once, by `wrapped`, and caches the result.

    The cache includes the handlers of the interceptors after it: one that decides per call must come before it.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's wrapped handler; None if the method does not exist."""
        path = handler_call_details.method
        handler = self._handlers.get(path)
        if handler is None and (found := await continuation(handler_call_details)) is not None:
            handler = self._handlers[path] = self.wrapped(found, path)
        return handler

    @abstractmethod
    def wrapped(self, handler: Any, path: str) -> Any:
        """Return the wrapped handler of the method at `path`, ``/service/method``."""


class AroundInterceptor(WrappingInterceptor):
    """Wraps every unary call, such as in the span of its trace."""

    def __init__(self, around: Around) -> None:
        super().__init__()
        self._around = around

    def wrapped(self, handler: Any, path: str) -> Any:
        """Wrap unary handlers; return stream handlers unchanged."""
        if handler.unary_unary is None:
            return handler
        return unary(handler, self._around(handler.unary_unary, *names_of(path)))


def unary(handler: Any, inner: Handler) -> Any:
    """Return a unary handler that calls `inner`, with the (de)serialisers of `handler`."""
    return grpc.unary_unary_rpc_method_handler(
        inner, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
    )


def names_of(path: str) -> tuple[str, str]:
    """Return service and method of a path ``/service/method``."""
    service, _, method = path.removeprefix("/").partition("/")
    return service, method
