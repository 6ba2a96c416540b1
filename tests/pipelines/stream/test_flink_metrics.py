"""How counters of Flink, which start again and can be forgotten, become counters of the process."""

import logging
import math
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from weir.pipelines.stream.driver import Standstill
from weir.pipelines.stream.flink import Checkpoints, FlinkClient, Job, JobFailure
from weir.pipelines.stream.flink_metrics import STATES, FlinkMetrics
from weir.pipelines.stream.job import FlinkJob


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
