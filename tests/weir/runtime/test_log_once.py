import logging

import pytest

from weir.contracts import CorruptArtefactError
from weir.runtime.log_once import LogOnce

LOG = logging.getLogger("tests.problems")


def test_each_problem_is_told_once_until_all_is_well(caplog: pytest.LogCaptureFixture) -> None:
    once = LogOnce(LOG)
    errors = [OSError("away"), CorruptArtefactError("a", "is cut short"), KeyError("away")]
    with caplog.at_level(logging.ERROR):
        assert [once.failed(error, "stays") for error in errors * 3] == [True] * 3 + [False] * 6
    assert caplog.messages == ["stays: away", "stays: a: is cut short", "stays: KeyError: 'away'"]
    assert [record.exc_info is not None for record in caplog.records] == [False, False, True]
    once.succeeded()
    assert once.failed(errors[0], "stays")


def test_messages_that_never_repeat_are_forgotten() -> None:
    once = LogOnce(LOG)
    for number in range(1000):
        once.failed(OSError(f"request {number}"), "stays", level=logging.DEBUG)
    assert once.failed(OSError("request 0"), "stays", level=logging.DEBUG), "old failures are forgotten"
