"""The context of a call over HTTP: those methods of gRPC's context that the service uses."""

import re
import ssl
import time
from collections.abc import Sequence
from typing import Final, NoReturn

import grpc
from aiohttp import web
from google.rpc import status_pb2

from weir.serving.status import DETAILS_KEY

__all__ = ["AbortedError", "HttpCall", "seconds_of"]

TIMEOUT: Final = "Grpc-Timeout"
_TIMEOUT: Final = re.compile(r"(\d{1,8})([HMSmun])")
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class AbortedError(Exception):
    """The service has aborted the call; `status` is the error as gRPC would send it."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


class HttpCall:
    """The context of one request; `sent` are headers for the answer."""

    def __init__(self, request: web.Request) -> None:
        self._metadata = tuple((name.lower(), value) for name, value in request.headers.items())
        seconds = seconds_of(request.headers.get(TIMEOUT, ""))
        self._ends = None if seconds is None else time.monotonic() + seconds
        self._connection = request.transport
        self._code: grpc.StatusCode | None = None
        self.sent: dict[str, str] = {}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the headers, with names in lower case."""
        return self._metadata

    def certificate(self) -> bytes | None:
        """Return the client's certificate (PEM), verified by TLS; None without one."""
        connection = self._connection and self._connection.get_extra_info("ssl_object")
        found = connection and connection.getpeercert(binary_form=True)
        return ssl.DER_cert_to_PEM_cert(found).encode() if found else None

    async def send_initial_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        """Send headers with the answer."""
        self.sent.update(metadata)

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller's deadline; None without one."""
        return None if self._ends is None else self._ends - time.monotonic()

    def code(self) -> grpc.StatusCode | None:
        """Return the code with which the call was aborted; None if it was not."""
        return self._code

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[tuple[str, bytes]] = ()
    ) -> NoReturn:
        """End the call: raises `AbortedError`."""
        self._code = code
        status = status_pb2.Status(code=code.value[0], message=details)
        if carried := dict(trailing_metadata).get(DETAILS_KEY):
            status.ParseFromString(carried)
        raise AbortedError(status)


def seconds_of(timeout: str) -> float | None:
    """Return the seconds of a gRPC timeout such as ``200m`` (milliseconds); None if it cannot be parsed."""
    found = _TIMEOUT.fullmatch(timeout)
    return None if found is None else int(found[1]) * _UNITS[found[2]]
