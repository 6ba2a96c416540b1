import asyncio
from types import SimpleNamespace
from typing import Any

import grpc

from weir.serving.wrapping import AroundInterceptor, Handler, WrappingInterceptor, names_of


class Counting(WrappingInterceptor):
    """Keeps what it was asked to wrap."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, str]] = []

    def wrapped(self, handler: Any, path: str) -> Any:
        self.seen.append((handler, path))
        return f"wrapped {handler}"


def test_each_method_is_wrapped_once_and_an_unknown_one_is_asked_for_again() -> None:
    interceptor, found = Counting(), {"/s/A": "a", "/s/B": "b"}
    asked: list[str] = []

    async def continuation(details: Any) -> Any:
        asked.append(details.method)
        return found.get(details.method)

    async def handler(path: str) -> Any:
        return await interceptor.intercept_service(continuation, SimpleNamespace(method=path))  # type: ignore[arg-type]

    async def scenario() -> list[Any]:
        return [await handler(path) for path in ("/s/A", "/s/A", "/s/B", "/s/C", "/s/C", "/s/A")]

    assert asyncio.run(scenario()) == ["wrapped a", "wrapped a", "wrapped b", None, None, "wrapped a"]
    assert interceptor.seen == [("a", "/s/A"), ("b", "/s/B")]
    assert asked == ["/s/A", "/s/B", "/s/C", "/s/C"]


def test_something_is_put_around_unary_calls_only_and_messages_stay_as_they_are() -> None:
    def around(inner: Handler, service: str, method: str) -> Handler:
        async def handle(request: Any, context: Any) -> Any:
            return service, method, await inner(request, context)

        return handle

    async def double(request: int, _: Any) -> int:
        return 2 * request

    interceptor = AroundInterceptor(around)
    plain = grpc.unary_unary_rpc_method_handler(double, request_deserializer=int, response_serializer=str)
    handler = interceptor.wrapped(plain, "/weir.S/Double")
    assert asyncio.run(handler.unary_unary(4, None)) == ("weir.S", "Double", 8)
    assert (handler.request_deserializer, handler.response_serializer) == (int, str)
    stream = grpc.unary_stream_rpc_method_handler(double)
    assert interceptor.wrapped(stream, "/weir.S/Watch") is stream


def test_a_path_names_service_and_method() -> None:
    assert names_of("/weir.retrieval.v1.RetrievalService/Embed") == ("weir.retrieval.v1.RetrievalService", "Embed")
