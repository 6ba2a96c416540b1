"""What is read of Flink's answers; a real Flink is in tests/integration/test_flink.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.pipelines.stream.flink import FlinkAwayError, FlinkClient, cause
from weir.up.ports import free_port

PYTHON = """\
org.apache.flink.runtime.taskmanager.AsynchronousException: Caught exception while processing timer.
\tat org.apache.flink.Task.run(Task.java:566)
Caused by: java.util.concurrent.ExecutionException: java.lang.RuntimeException: Error received from SDK harness: \
Traceback (most recent call last):
  File "common.py", line 1512, in process
ValueError: no room

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "sdk_worker.py", line 310, in _execute
    response = task()
ValueError: no room [while running 'ParDo(Commit)']

\tat java.base/java.util.concurrent.CompletableFuture.get(CompletableFuture.java:2073)
\t... 20 more
"""
JAVA = """\
java.lang.Exception: Could not start
\tat org.apache.flink.Task.run(Task.java:566)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.write(FileOutputStream.java:1)
\t... 3 more
"""


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (PYTHON, "ValueError: no room [while running 'ParDo(Commit)']"),
        (JAVA, "java.io.IOException: No space left on device"),
        ("java.lang.Error: alone", "java.lang.Error: alone"),
        ("", ""),
    ],
)
def test_the_cause_is_the_line_that_says_what_happened_first(trace: str, expected: str) -> None:
    assert cause(trace) == expected


@given(st.text())
def test_a_cause_is_one_line_of_the_trace(trace: str) -> None:
    found = cause(trace)
    assert found in trace
    assert len(found.splitlines()) <= 1


def test_where_nothing_listens_flink_is_away() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(FlinkAwayError, match=f"Flink at {address} does not answer"):
        FlinkClient(address).jobs()
