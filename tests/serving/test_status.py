import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from serving.errors import (
    BundleVersionNotLoadedError,
    DeadlinePassedError,
    InvalidRequestError,
    NoBundleError,
    NoCatalogueError,
    QueueFullError,
    RequestError,
    ShuttingDownError,
    Violation,
)
from serving.status import code_of, details_of

CODES = grpc.StatusCode


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (InvalidRequestError([Violation("queries", "is empty")]), CODES.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (NoCatalogueError(["filter.any_tags"]), CODES.FAILED_PRECONDITION, "NO_CATALOGUE"),
        (QueueFullError(9, 8, 0.25), CODES.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
        (NoBundleError(), CODES.UNAVAILABLE, "NO_BUNDLE"),
        (ShuttingDownError(), CODES.UNAVAILABLE, "SHUTTING_DOWN"),
        (BundleVersionNotLoadedError("a", "b"), CODES.FAILED_PRECONDITION, "BUNDLE_VERSION_NOT_LOADED"),
        (DeadlinePassedError(), CODES.DEADLINE_EXCEEDED, "DEADLINE_PASSED"),
        (RequestError("oh"), CODES.INTERNAL, "INTERNAL"),
    ],
)
def test_every_error_has_its_code_and_reason(error: RequestError, code: grpc.StatusCode, reason: str) -> None:
    status = status_pb2.Status.FromString(details_of(error))
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (code_of(error), status.code, status.message) == (code, code.value[0], str(error))
    assert (info.reason, info.domain, dict(info.metadata)) == (reason, "weir", error.metadata)


def test_details_say_what_to_repair_and_when_to_return() -> None:
    bad, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    violations = [Violation("queries[0].k", "is 0"), Violation("queries[1]", "has no source")]
    assert status_pb2.Status.FromString(details_of(InvalidRequestError(violations))).details[1].Unpack(bad)
    assert [(v.field, v.description) for v in bad.field_violations] == [(v.field, v.problem) for v in violations]
    assert status_pb2.Status.FromString(details_of(QueueFullError(9, 8, 0.25))).details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 250
