"""What is read of Flink's answers; a real Flink is in tests/integration/test_flink.py."""

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, StandardOptions
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from weir.contracts import Store
from weir.pipelines.stream.config import StreamConfig
from weir.pipelines.stream.flink import FlinkAwayError, FlinkClient, cause, job_name, pipeline_options
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


def test_flink_is_found_where_the_settings_say() -> None:
    settings = StreamConfig(job_endpoint="jobs:1", artifact_endpoint="jobs:2", worker_pool="localhost:3", parallelism=4)
    options = PipelineOptions(pipeline_options(settings, "weir-a"))
    portable = options.view_as(PortableOptions)
    assert (portable.job_endpoint, portable.artifact_endpoint) == ("jobs:1", "jobs:2")
    assert (portable.environment_type, portable.environment_config) == ("EXTERNAL", "localhost:3")
    assert int(portable.sdk_worker_parallelism) == 4
    assert options.view_as(StandardOptions).streaming


def test_flink_gets_options_in_its_units() -> None:
    settings = StreamConfig(checkpoint_seconds=2.5, bundle_seconds=0.1, bundle_batches=8)
    found = pipeline_options(settings, "weir-a")
    assert {"--checkpointing_interval=2500", "--max_bundle_time_mills=100", "--max_bundle_size=8"} <= set(found)
    assert not any("idle" in option for option in found), "0 would stop all checkpoints"


def test_it_streams_under_the_name_and_the_user_has_the_last_word() -> None:
    found = pipeline_options(StreamConfig(options=("--job_name=mine", "--region=x")), "weir-a")
    assert found[0] == "--runner=PortableRunner"
    assert "--streaming" in found
    assert found[-3:] == ["--job_name=weir-a", "--job_name=mine", "--region=x"]


@given(st.text("abcXYZ09/_.-é", min_size=1), st.text("abcXYZ09/_.-é", min_size=1))
def test_stores_have_different_names_that_flink_takes(one: str, other: str) -> None:
    names = [job_name(Store(f"s3://bucket/{path}")) for path in (one, other)]
    assert (names[0] == names[1]) == (one == other)
    for name in names:
        assert name.startswith("weir-")
        assert len(name) <= 63
        assert all(letter.isascii() and (letter.isalnum() or letter == "-") for letter in name)


@pytest.mark.parametrize("wrong", [{"worker_pool": "nohost"}, {"flink_rest": "127.0.0.1:8081"}])
def test_what_is_no_address_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        StreamConfig.model_validate(wrong)
