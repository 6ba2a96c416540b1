import grpc
import pytest

from weir.serving.interceptor import go_name


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (grpc.StatusCode.OK, "OK"),
        (grpc.StatusCode.CANCELLED, "Canceled"),
        (grpc.StatusCode.INVALID_ARGUMENT, "InvalidArgument"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "DeadlineExceeded"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "ResourceExhausted"),
        (grpc.StatusCode.UNAUTHENTICATED, "Unauthenticated"),
    ],
)
def test_codes_are_spelt_as_go_spells_them(code: grpc.StatusCode, name: str) -> None:
    assert go_name(code) == name
