"""Status code and duration of an ended call: one rule for metrics, traces and the access log."""

import asyncio
import time
from types import TracebackType
from typing import Any, Final, Self

import grpc

__all__ = ["Ending", "is_over"]

_ROUNDED: Final = 0.02
"""Share of a deadline that may still be left here when the client's has passed: gRPC rounds it up, by 1 % at most."""


class Ending:
    """Context manager around the answer to a call: sets `code` and `seconds` on exit. Exceptions propagate."""

    __slots__ = ("_allowed", "_context", "_start", "code", "seconds")

    def __init__(self, context: Any) -> None:
        self._context, self._allowed = context, context.time_remaining()
        self.code, self.seconds = grpc.StatusCode.OK, 0.0
        self._start = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._start
        if isinstance(error, asyncio.CancelledError):
            late = is_over(self._allowed, self._context.time_remaining())
            self.code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
        elif error is not None:
            self.code = _code_of(self._context)


def is_over(allowed: float | None, left: float | None) -> bool:
    """Return whether the client's deadline has passed: seconds `left` of those `allowed`; None: no deadline."""
    return allowed is not None and left is not None and left <= _ROUNDED * allowed


def _code_of(context: Any) -> grpc.StatusCode:
    """Return the code that a failed handler aborted with; UNKNOWN, as gRPC answers, after any other exception."""
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return next((known for known in grpc.StatusCode if known.value[0] == code and code), grpc.StatusCode.UNKNOWN)
