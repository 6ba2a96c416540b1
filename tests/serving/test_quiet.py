import logging

import pytest
from grpc._cython.cygrpc import ExecuteBatchError

from weir.serving.quiet import leave_out_departed


def test_only_a_caller_who_has_left_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """In the words of gRPC's own handler of errors."""
    leave_out_departed()
    leave_out_departed()
    logger = logging.getLogger("grpc._cython.cygrpc")
    for error, words in (
        (ExecuteBatchError("Failed"), "ExecuteBatchError raised in core by servicer method [%s]"),
        (ValueError("a fault"), "Unexpected [ValueError] raised by servicer method [%s]"),
    ):
        try:
            raise error
        except Exception:
            logger.exception(words, "/Embed")
    assert caplog.messages == ["Unexpected [ValueError] raised by servicer method [/Embed]"]
