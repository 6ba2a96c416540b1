"""The chain on a Beam runner; that of an engine is in tests/integration/test_stream.py."""

import logging
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, StandardOptions
from apache_beam.transforms.window import TimestampedValue
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from tests.pipelines.stream.simulation import random_log, settings, start
from tests.pipelines.stream.test_committer import check
from weir.contracts import LogState, Store
from weir.pipelines.stream.config import StreamConfig
from weir.pipelines.stream.driver import Standstill
from weir.pipelines.stream.flink_client import (
    Checkpoints,
    FlinkAwayError,
    FlinkClient,
    Job,
    JobFailure,
    cause,
    job_name,
    pipeline_options,
)
from weir.pipelines.stream.flink_job import BatchesToCommits, FlinkJob
from weir.pipelines.stream.flink_metrics import STATES, FlinkMetrics
from weir.pipelines.stream.reader import Batch
from weir.pipelines.stream.slices import slices_of
from weir.up.ports import free_port


def test_what_a_window_brings_is_one_commit(tmp_path: Path) -> None:
    store, config, log = Store(str(tmp_path / "store")), settings(tmp_path), random_log(Random(3), 400)
    start(store, config, log)
    first = LogState.open(store).number
    # All rows come late: with one window, since over a bounded input this runner knows no order of windows.
    late = 10**13
    whole = [one.batch(0, one.size, late) for one in log]
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        batches = pipeline | beam.Create(whole) | beam.Map(_at_its_watermark).with_output_types(Batch)
        _ = batches | BatchesToCommits(store, config)
    check(store, log)
    assert LogState.open(store).number == first + 1


def _at_its_watermark(batch: Batch) -> TimestampedValue:
    return TimestampedValue(batch, batch.watermark_ms / 1000)


def test_rows_come_with_their_window_or_with_that_of_the_watermark(tmp_path: Path) -> None:
    [one, *_] = random_log(Random(5), 200)
    watermark = 1_700_000_015_000
    found = dict(slices_of(one.batch(0, one.size, watermark), 10_000, ""))
    assert min(found) == 1_700_000_010_000
    assert [start_ms for start_ms, part in found.items() if part.tile] == [1_700_000_010_000]
    positions = np.concatenate([part.rows.column("position").to_numpy() for part in found.values()])
    assert sorted(positions.tolist()) == sorted(one.batch(0, one.size, 0).rows.column("position").to_pylist())
    for start_ms, part in found.items():
        times = part.rows.column("timestamp").to_numpy()
        assert (np.maximum(times // 10_000 * 10_000, min(found)) == start_ms).all()
    tile = found[1_700_000_010_000].tile
    assert tile is not None
    later = {at: part.rows.column("position").to_numpy() for at, part in found.items() if not part.tile}
    assert tile.open == {at: (rows.min(), rows.max()) for at, rows in later.items()}


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


@dataclass
class Told(FlinkClient):
    """Says of the job what it was told to say."""

    url: str = "http://127.0.0.1:8081"
    start_ms: int = field(default_factory=lambda: 1000 * int(time.time() + 60))
    state: str = "RUNNING"
    restarted: int = 0
    dropped: dict[str, float] = field(default_factory=dict)
    raised: list[JobFailure] = field(default_factory=list)
    marks: dict[str, int | None] = field(default_factory=dict)
    partitions: dict[str, float] = field(default_factory=dict)
    kept: Checkpoints = field(default_factory=lambda: Checkpoints(0, None, None, None))

    def job(self, job: str) -> Job:
        return Job(job, "weir", self.state, self.start_ms)

    def restarts(self, job: str) -> int:
        return self.restarted

    def failures(self, job: str) -> list[JobFailure]:
        return self.raised

    def counters(self, job: str, name: str) -> dict[str, float]:
        return self.dropped

    def watermarks(self, job: str) -> dict[str, int | None]:
        return self.marks

    def gauges(self, job: str, prefix: str) -> dict[str, float]:
        return self.partitions

    def checkpoints(self, job: str) -> Checkpoints:
        return self.kept


class Shown:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = FlinkMetrics(self.registry)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"weir_pipeline_{name}", labels)


def increase(readings: list[int]) -> int:
    """What Prometheus takes for the increase of a counter that may start again."""
    return sum(new - old if new >= old else new for old, new in zip([0, *readings], readings, strict=False))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12))
def test_counters_that_start_again_with_each_attempt_never_fall(readings: list[tuple[int, int]]) -> None:
    shown, told = Shown(), Told()
    for first, second in readings:
        told.dropped = {"one": float(first), "two": float(second)}
        shown.metrics.look(told, "a")
    expected = sum(increase([pair[task] for pair in readings]) for task in (0, 1))
    assert shown.value("dropped_late_rows_total") == expected


@given(st.lists(st.integers(1, 4), max_size=8))
def test_each_failure_is_counted_once_though_flink_lists_it_again(bursts: list[int]) -> None:
    shown, told = Shown(), Told()
    for burst in bursts:
        newest = told.raised[0].at_ms if told.raised else 0
        fresh = [JobFailure(newest + number, "task", "ValueError") for number in range(burst, 0, -1)]
        told.raised = (fresh + told.raised)[:16]
        shown.metrics.look(told, "a")
        shown.metrics.look(told, "a")
    assert shown.value("job_failures_total") == sum(bursts)


def test_of_a_job_that_is_older_than_the_process_only_what_comes_is_counted() -> None:
    told = Told(start_ms=0, restarted=7, raised=[JobFailure(5, "", "old")], kept=Checkpoints(3, 5000, 10, 20))
    shown = Shown()
    shown.metrics.look(told, "a")
    assert [shown.value(f"{name}_total") for name in ("job_restarts", "job_failures", "checkpoint_failures")] == [0] * 3
    told.restarted, told.raised = 8, [JobFailure(6, "", "new"), *told.raised]
    shown.metrics.look(told, "a")
    assert [shown.value(f"{name}_total") for name in ("job_restarts", "job_failures")] == [1, 1]


def test_a_job_after_another_adds_to_the_same_counters() -> None:
    shown, told = Shown(), Told(restarted=3)
    shown.metrics.look(told, "a")
    told.restarted = 2
    shown.metrics.look(told, "b")
    assert shown.value("job_restarts_total") == 5


def test_the_age_of_the_first_checkpoint_counts_from_the_start_of_the_job() -> None:
    shown, told = Shown(), Told(start_ms=50_000)
    shown.metrics.look(told, "a")
    assert shown.value("checkpoint_timestamp_seconds") == 50
    told.kept = Checkpoints(0, 70_000, 1234, 500)
    shown.metrics.look(told, "a")
    found = [shown.value(f"checkpoint_{name}") for name in ("timestamp_seconds", "bytes", "duration_seconds")]
    assert found == [70, 1234, 0.5]


@pytest.mark.parametrize(
    ("marks", "expected"), [({"a": 5000, "b": 3000}, 3), ({"a": 5000, "b": None}, None), ({}, None)]
)
def test_the_watermark_is_the_lowest_and_unknown_until_all_tasks_have_one(
    marks: dict[str, int | None], expected: int | None
) -> None:
    shown = Shown()
    shown.metrics.look(Told(marks=marks), "a")
    found = shown.value("job_watermark_timestamp_seconds")
    assert found == expected or (expected is None and found != found)  # noqa: PLR0124 - NaN


@pytest.mark.parametrize("state", ["RUNNING", "RESTARTING", "FAILED", "CANCELLING"])
def test_one_state_is_shown(state: str) -> None:
    shown = Shown()
    assert shown.metrics.look(Told(state=state), "a") == state.lower()
    assert [name for name in STATES if shown.value("job_state", state=name)] == [state.lower()]


def test_each_partition_shows_its_watermark() -> None:
    shown, told = Shown(), Told(partitions={"watermark_ms_0": 1500.0, "watermark_ms_1": 9000.0})
    shown.metrics.look(told, "a")
    told.partitions["watermark_ms_0"] = 2500.0
    shown.metrics.look(told, "a")
    found = [shown.value("partition_watermark_timestamp_seconds", partition=one) for one in ("0", "1")]
    assert found == [2.5, 9.0]


def test_what_keeps_windows_open_is_told_from_the_newest_look() -> None:
    shown, told = Shown(), Told()
    job = FlinkJob(told, "weir", shown.metrics)
    assert "does not answer" in job.obstacle
    told.state = "RESTARTING"
    job.state()
    assert job.obstacle == "the job is restarting"
    told.state, told.partitions = "RUNNING", {"watermark_ms_0": 9000.0, "unanswered_ms_0": 0.0}
    told.partitions |= {"watermark_ms_1": 2000.0, "unanswered_ms_1": 60_000.0, "unanswered_ms_2": 61_000.0}
    job.state()
    assert job.obstacle.startswith(
        "the brokers have not answered the readers of partitions 1, 2 since 1970-01-01T00:01:00"
    )
    since = [shown.value("partition_unanswered_since_timestamp_seconds", partition=one) for one in ("0", "1", "2")]
    assert since == [0, 60, 61]
    told.partitions |= {"unanswered_ms_1": 0.0, "unanswered_ms_2": 0.0}
    job.state()
    assert job.obstacle.startswith("partition 1 holds the windows: its watermark is 1970-01-01T00:00:02")


def test_a_stream_without_commits_says_so_once_until_they_follow(caplog: pytest.LogCaptureFixture) -> None:
    shown = Shown()
    standstill = Standstill(shown.metrics.uncommitted, patience_seconds=0.2)
    standstill.look(0, lambda: "nothing to say")
    assert math.isnan(shown.value("uncommitted_since_timestamp_seconds") or 0)
    standstill.look(5, lambda: "too early")
    since = shown.value("uncommitted_since_timestamp_seconds")
    assert since == pytest.approx(time.time(), abs=5)
    time.sleep(0.25)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            standstill.look(7, lambda: "the job is restarting")
        assert shown.value("uncommitted_since_timestamp_seconds") == since
        standstill.moved()
        standstill.look(7, lambda: "too early again")
    assert [record.message.partition(", ")[2] for record in caplog.records] == [
        "and 7 messages are in none: the job is restarting",
        "",
    ]
    assert (shown.value("uncommitted_since_timestamp_seconds") or 0) > (since or 0)


def test_rows_that_were_dropped_are_told_apart_from_those_of_before() -> None:
    shown, told = Shown(), Told(dropped={"one": 0.0})
    shown.metrics.look(told, "a")
    assert shown.metrics.rows_dropped == 0
    told.dropped = {"one": 3.0}
    shown.metrics.look(told, "a")
    assert shown.metrics.rows_dropped == 3
