"""`RetrievalError`: the error of a failed call, as clients see it, with its gRPC status details."""

from typing import Any, Final, Self

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from weir.contracts import UserError
from weir.serving.status import DOMAIN

__all__ = ["RetrievalError"]

_TOO_LARGE: Final = "message larger than max"
"""Part of gRPC's message if one side refuses a message's size; it has no details, and a retry does not help."""
_SMALLER: Final = "send less in a request, see limits.max_request_bytes of `info`"


class RetrievalError(UserError):
    """The server's refusal: the gRPC `code`, the stable `reason`, and the `violations` (field -> problem)."""

    def __init__(self, code: grpc.StatusCode, message: str, reason: str = "", violations: dict[str, str] | None = None):
        super().__init__(f"{code.name}{f' ({reason})' if reason else ''}: {message}")
        self.code, self.reason, self.violations = code, reason, violations or {}
        self.retry_after: float | None = None

    @classmethod
    def of(cls, error: grpc.RpcError) -> Self:
        """Build the error from the status details of a failed call."""
        call: Any = error
        found = cls(call.code(), call.details() or "")
        status = rpc_status.from_call(call)
        for detail in status.details if status is not None else ():
            found._read(detail)
        if found.code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in (call.details() or ""):
            found.reason = "MESSAGE_TOO_LARGE"
            found.args = (f"{found.code.name} ({found.reason}): {call.details()}: {_SMALLER}",)
        return found

    def explain(self) -> list[str]:
        """Return lines for the user: what to do if no server answers, else the refusal and its violations."""
        if self.code is grpc.StatusCode.UNAVAILABLE and not self.reason:
            start = "start one with `weir up` or `weir serve`, or name it with --target"
            return [f"no server answers: {start}; if it speaks TLS, set `client` ({self})"]
        return [f"the server refused: {self}", *(f"  {field}: {problem}" for field, problem in self.violations.items())]

    def _read(self, detail: Any) -> None:
        info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            self.reason = info.reason
            self.args = (f"{self.code.name} ({info.reason}): {str(self).partition(': ')[2]}",)
        elif detail.Unpack(bad):
            self.violations = {violation.field: violation.description for violation in bad.field_violations}
        elif detail.Unpack(retry):
            self.retry_after = retry.retry_delay.ToNanoseconds() / 1e9
