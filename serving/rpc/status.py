"""Maps refusals (`RequestError`) to gRPC codes and status details (`google.rpc.Status`)."""

from typing import Final

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from weir.serving.errors import (
    AnswerTooLargeError,
    BodyLateError,
    BundleVersionNotLoadedError,
    CallRateError,
    DeadlinePassedError,
    InvalidRequestError,
    KeysNotLoadedError,
    NoBundleError,
    NoCatalogueError,
    NotAllowedError,
    NoTimeLeftError,
    NotJsonError,
    QueueFullError,
    RequestError,
    ShuttingDownError,
    TokenAudienceError,
    TokenExpiredError,
    TokenInvalidError,
    TokenIssuerError,
    TokenMissingError,
    TokenNotYetValidError,
    UndecodableRequestError,
)

__all__ = ["DETAILS_KEY", "DOMAIN", "code_of", "details_of"]

DOMAIN: Final = "weir"
DETAILS_KEY: Final = "grpc-status-details-bin"
"""Key of the trailing metadata with the `google.rpc.Status` of a gRPC error."""

_CODES: Final[dict[type[RequestError], grpc.StatusCode]] = {
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    BodyLateError: grpc.StatusCode.DEADLINE_EXCEEDED,
    AnswerTooLargeError: grpc.StatusCode.FAILED_PRECONDITION,
    NoCatalogueError: grpc.StatusCode.FAILED_PRECONDITION,
    UndecodableRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    NotJsonError: grpc.StatusCode.INVALID_ARGUMENT,
    QueueFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NoTimeLeftError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NoBundleError: grpc.StatusCode.UNAVAILABLE,
    ShuttingDownError: grpc.StatusCode.UNAVAILABLE,
    BundleVersionNotLoadedError: grpc.StatusCode.FAILED_PRECONDITION,
    DeadlinePassedError: grpc.StatusCode.DEADLINE_EXCEEDED,
    TokenMissingError: grpc.StatusCode.UNAUTHENTICATED,
    TokenInvalidError: grpc.StatusCode.UNAUTHENTICATED,
    TokenExpiredError: grpc.StatusCode.UNAUTHENTICATED,
    TokenNotYetValidError: grpc.StatusCode.UNAUTHENTICATED,
    TokenAudienceError: grpc.StatusCode.UNAUTHENTICATED,
    TokenIssuerError: grpc.StatusCode.UNAUTHENTICATED,
    NotAllowedError: grpc.StatusCode.PERMISSION_DENIED,
    CallRateError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    KeysNotLoadedError: grpc.StatusCode.UNAVAILABLE,
}


def code_of(error: RequestError) -> grpc.StatusCode:
    """Return the gRPC code of an error; INTERNAL for a type of error without a code."""
    return _CODES.get(type(error), grpc.StatusCode.INTERNAL)


def details_of(error: RequestError) -> bytes:
    """Return the serialised `google.rpc.Status` of an error."""
    status = status_pb2.Status(code=code_of(error).value[0], message=str(error))
    for detail in _details(error):
        packed = Any()
        packed.Pack(detail)
        status.details.append(packed)
    return bytes(status.SerializeToString())


def _details(error: RequestError) -> list[Message]:
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)]
    if isinstance(error, InvalidRequestError):
        violations = [
            error_details_pb2.BadRequest.FieldViolation(field=violation.field, description=violation.problem)
            for violation in error.violations
        ]
        details.append(error_details_pb2.BadRequest(field_violations=violations))
    if isinstance(error, QueueFullError | CallRateError):
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(error.retry_after * 1e9))
        details.append(retry)
    return details
