import asyncio

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.serving.ending import Ending, is_over


class Context:
    """A call with a deadline, of which so much is left once it has been asked for."""

    def __init__(self, allowed: float | None, left: float | None, code: object = None) -> None:
        self._remaining, self._code = [allowed, left], code

    def time_remaining(self) -> float | None:
        return self._remaining.pop(0)

    def code(self) -> object:
        return self._code


def ended(context: Context, error: BaseException | None) -> Ending:
    ending = Ending(context)
    if error is None:
        with ending:
            pass
        return ending
    with pytest.raises(type(error)), ending:
        raise error
    return ending


def test_an_answer_is_ok_after_some_time() -> None:
    ending = ended(Context(None, None), None)
    assert ending.code == grpc.StatusCode.OK
    assert 0 < ending.seconds < 60


@pytest.mark.parametrize("code", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INVALID_ARGUMENT.value[0]])
def test_a_refusal_has_the_code_that_it_was_aborted_with(code: object) -> None:
    assert ended(Context(None, None, code), RuntimeError()).code == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("code", [None, 0, 999])
def test_any_other_exception_is_unknown(code: object) -> None:
    assert ended(Context(None, None, code), RuntimeError()).code == grpc.StatusCode.UNKNOWN


@pytest.mark.parametrize(
    ("allowed", "left", "code"),
    [
        (None, None, grpc.StatusCode.CANCELLED),
        (10.0, 5.0, grpc.StatusCode.CANCELLED),
        (10.0, 0.1, grpc.StatusCode.DEADLINE_EXCEEDED),
        (10.0, -1.0, grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
def test_who_leaves_before_the_deadline_has_cancelled(
    allowed: float | None, left: float | None, code: grpc.StatusCode
) -> None:
    assert ended(Context(allowed, left), asyncio.CancelledError()).code == code


@given(st.floats(0.001, 1e6), st.floats(0, 1))
def test_a_deadline_is_over_with_the_last_fiftieth_of_it(allowed: float, share: float) -> None:
    assert is_over(allowed, share * allowed) == (share * allowed <= 0.02 * allowed)
    assert not is_over(None, share)
    assert not is_over(allowed, None)
