"""The retrieval client for asyncio: the methods of `weir.serving.client` as coroutines."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.access.channel import AsyncChannel
from weir.serving.access_config import ClientConfig
from weir.serving.client import (
    CHANNEL_OPTIONS,
    Floats,
    Info,
    Retrieval,
    RetrievalError,
    Wishes,
    embed_request,
    info_of,
    retrieval_of,
    retrieve_request,
    vectors_of,
)

__all__ = ["AsyncRetrievalClient"]


class AsyncRetrievalClient:
    """An asyncio client of the service at `target` (``host:port``); every call ends within `timeout` seconds.

    `config` has TLS and token settings. Create the client inside the event loop that uses it, and use it as an
    asynchronous context manager or await `close`. Cancelling a call also cancels it on the server. All methods raise
    `RetrievalError`, and `ValueError` after `close`. The constructor raises `RuntimeError` if no event loop runs,
    `OSError` or `ValueError` if a file of `config` cannot be used.
    """

    def __init__(self, target: str, timeout: float = 10.0, config: ClientConfig | None = None) -> None:
        asyncio.get_running_loop()
        self._timeout = timeout
        self._channel = AsyncChannel(target, config, CHANNEL_OPTIONS)
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        self._is_closed = True
        await self._channel.close()

    async def retrieve(
        self, queries: Sequence[pb.Query], *, timeout: float | None = None, **wishes: Unpack[Wishes]
    ) -> Retrieval:
        """Return the top items of each query; `timeout` (seconds) replaces the client's timeout for this call."""
        return retrieval_of(await self._call("Retrieve", retrieve_request(queries, wishes), timeout))

    async def embed(self, queries: Sequence[pb.Query], *, timeout: float | None = None) -> list[Floats | None]:
        """Return the vector (dimension,) of each query; None if the bundle has no data for the query."""
        return vectors_of(await self._call("Embed", embed_request(queries), timeout))

    async def info(self, *, timeout: float | None = None) -> Info:
        """Describe the served bundle and the server's limits."""
        return info_of(await self._call("GetInfo", pb.GetInfoRequest(), timeout))

    async def _call(self, method: str, request: Any, timeout: float | None) -> Any:
        if self._is_closed:
            raise ValueError("this client is closed")
        channel = self._channel.open()  # referenced until the answer arrives, even if certificates change meanwhile
        call = getattr(retrieval_pb2_grpc.RetrievalServiceStub(channel), method)
        try:
            return await call(request, timeout=self._timeout if timeout is None else timeout)
        except grpc.RpcError as error:
            raise RetrievalError.of(error) from error
