"""Decodes requests: large ones in a thread of their own, undecodable ones as INVALID_ARGUMENT.

gRPC itself decodes on the event loop, and answers garbage with INTERNAL and a traceback in the log, so that a caller
could fill the disk.

The fields of a large message are counted before it is decoded, up to the limit. Decoding makes an object of every two
bytes of ``0a 00 0a 00 ...``: 16 MB of them take a second and 350 MB, with the interpreter's lock held.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from weir.serving.errors import InvalidRequestError, QueueFullError, RequestError, UndecodableRequestError, Violation
from weir.serving.rpc.instrumentation import WrappingInterceptor

__all__ = ["DecodingInterceptor", "OffloadExecutor", "has_more_fields"]


Made = TypeVar("Made")

_WAITING: Final = 64
"""Most requests that may wait for the thread: they hold memory."""


class OffloadExecutor:
    """Runs work in one background thread; a client refused by `require_room` should wait `retry_after` seconds."""

    def __init__(self, retry_after: float) -> None:
        self._retry_after = retry_after
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weir-aside")
        self._waiting = 0

    def require_room(self) -> None:
        """Raise `QueueFullError` if too many calls of `run` wait for the thread."""
        if self._waiting >= _WAITING:
            raise QueueFullError(self._waiting, _WAITING, self._retry_after, "large requests")

    async def run(self, make: Callable[[], Made]) -> Made:
        """Call `make` in the thread; return its result, or raise its error."""
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, make)
        finally:
            self._waiting -= 1


_LARGE: Final = 1 << 16
"""Bytes up to which the event loop decodes a message: a few milliseconds at most."""
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}

Refuse = Callable[[RequestError, Any], Awaitable[None]]


class DecodingInterceptor(WrappingInterceptor):
    """Decodes the requests of every method, large ones in a background thread.

    Parameters
    ----------
    refuse
        Called with the error and the call's context; ends the call.
    aside
        The background thread that decodes large requests.
    most
        Most fields of a request, including all nested messages.
    """

    def __init__(self, refuse: Refuse, aside: OffloadExecutor, most: int) -> None:
        super().__init__()
        self._refuse, self._aside, self._most = refuse, aside, most

    def wrapped(self, handler: Any, path: str) -> Any:  # noqa: ARG002 - all methods alike
        """Return a handler that gets requests as bytes from gRPC and decodes them itself."""
        decode = handler.request_deserializer
        codecs = {"request_deserializer": None, "response_serializer": handler.response_serializer}
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._one(handler.unary_unary, decode), **codecs)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(self._one(handler.unary_stream, decode), **codecs)
        return grpc.stream_stream_rpc_method_handler(self._many(handler.stream_stream, decode), **codecs)

    def _one(self, inner: Callable[[Any, Any], Awaitable[Any]], decode: Callable[[bytes], Any]) -> Any:
        async def handle(data: bytes, context: Any) -> Any:
            return await inner(await self._decoded(decode, data, context), context)

        return handle

    def _many(self, inner: Callable[[Any, Any], AsyncIterator[Any]], decode: Callable[[bytes], Any]) -> Any:
        async def decoded(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
            async for data in requests:
                yield await self._decoded(decode, data, context)

        async def handle(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
            async for answer in inner(decoded(requests, context), context):
                yield answer

        return handle

    async def _decoded(self, decode: Callable[[bytes], Any], data: bytes, context: Any) -> Any:
        try:
            if len(data) <= _LARGE:
                return _message(decode, data)
            self._aside.require_room()
            return await self._aside.run(partial(self._large_message, decode, data))
        except RequestError as error:
            await self._refuse(error, context)

    def _large_message(self, decode: Callable[[bytes], Any], data: bytes) -> Any:
        # Only a message knows its descriptor: decoding no bytes gives an empty one.
        if has_more_fields(data, decode(b"").DESCRIPTOR, self._most):
            problem = f"the request holds more than {self._most} fields: see GetInfo, limits"
            raise InvalidRequestError([Violation("", problem)])
        return _message(decode, data)


def _message(decode: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return decode(data)
    except DecodeError:
        raise UndecodableRequestError(len(data)) from None


def has_more_fields(data: bytes, descriptor: Any, most: int) -> bool:
    """Return whether a message of the type `descriptor` has more than `most` fields, nested messages included.

    A packed field counts once. For bytes that are not a message of this type the result may be either; decoding refuses
    them.
    """
    ranges = [(0, len(data), descriptor)]
    found = 0
    try:
        while ranges:
            place, end, kind = ranges.pop()
            while place < end:
                found += 1
                if found > most:
                    return True
                tag, place = _varint(data, place)
                wire = tag & 7
                if wire == _DELIMITED:
                    size, place = _varint(data, place)
                    field = kind.fields_by_number.get(tag >> 3)
                    if field is not None and field.message_type is not None:
                        ranges.append((place, min(place + size, end), field.message_type))
                    place += size
                elif wire == _VARINT:
                    _, place = _varint(data, place)
                else:
                    place += _FIXED.get(wire, 0)
    except IndexError:  # the bytes end in the middle of a number
        return False
    return False


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the varint that starts at `place`, and the place behind its last byte."""
    value = data[place]
    if value < 0x80:
        return value, place + 1
    value, shift = value & 0x7F, 7
    while True:
        place += 1
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
