import base64
from urllib.parse import quote

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.config import LimitsConfig
from weir.serving.errors import (
    AnswerTooLargeError,
    BodyLateError,
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
from weir.serving.rpc.requests import MAX_VIOLATIONS, features_of
from weir.serving.rpc.status import code_of, details_of

CODES = grpc.StatusCode
LAST = f"queries[{LimitsConfig().max_queries - 1}]"
HEADERS = 8 * 1024
"""What clients of gRPC take by default; some take more, by chance."""
OTHERS = 512
"""Bytes of other headers, such as those that name the call."""


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (InvalidRequestError([Violation("queries", "is empty")]), CODES.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (BodyLateError(), CODES.DEADLINE_EXCEEDED, "BODY_LATE"),
        (AnswerTooLargeError(9, 8), CODES.FAILED_PRECONDITION, "ANSWER_TOO_LARGE"),
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


def refusal_of(features: dict[str, pb.Feature]) -> InvalidRequestError:
    """The error of what is wrong with the features of the last query of a request."""
    found: list[Violation] = []
    features_of(LAST, pb.Query(user_id="ann", features=features), lambda *said: found.append(Violation(*said)))
    return InvalidRequestError(found[:MAX_VIOLATIONS], max(len(found) - MAX_VIOLATIONS, 0))


def bytes_in_headers(error: RequestError) -> int:
    """What the message, percent-encoded, and the details take."""
    plain = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
    return len(quote(str(error), safe=plain)) + len(base64.b64encode(details_of(error)))


letters = st.characters(exclude_categories=["Cs"])
names = st.builds(
    lambda start, letter, count: start + letter * count, st.text(letters), letters, st.integers(0, 20_000)
)
wrong = st.sampled_from([pb.Feature(), pb.Feature(number=-1.7976931348623157e308), pb.Feature(values=["é" * 257])])


@given(st.dictionaries(names, wrong, min_size=1, max_size=MAX_VIOLATIONS + 2))
def test_an_error_fits_into_headers_whatever_features_are_called(features: dict[str, pb.Feature]) -> None:
    error = refusal_of(features)
    assert bytes_in_headers(error) < HEADERS - OTHERS
    assert all(one.field.startswith(f'{LAST}.features["') for one in error.violations)


@pytest.mark.parametrize("letter", ["x", "é", "😀", "\n"])
def test_as_many_names_as_are_listed_fit_and_a_lone_one_is_named_in_full(letter: str) -> None:
    longest, number = letter * (510 // len(letter.encode())), pb.Feature(number=-1.7976931348623157e308)
    error = refusal_of({f"{place:02}{longest}": number for place in range(MAX_VIOLATIONS + 1)})
    assert (len(error.violations), error.more) == (MAX_VIOLATIONS, 1)
    assert bytes_in_headers(error) < HEADERS - OTHERS
    assert [one.field for one in refusal_of({longest: number}).violations] == [f'{LAST}.features["{longest}"]']
