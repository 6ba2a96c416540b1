"""Prometheus metrics of a stream's job, from Flink's REST API: the driver has no other view of workers and engine."""

import logging
import math
import time
from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from weir.pipelines.stream.flink_client import (
    Checkpoints,
    FlinkAwayError,
    FlinkClient,
    Job,
    JobFailure,
    JobMissingError,
)
from weir.pipelines.stream.reader import PARTITION, UNANSWERED, WATERMARK

__all__ = ["STATES", "FlinkMetrics"]

STATES: Final = (
    "initializing",
    "created",
    "running",
    "restarting",
    "failing",
    "failed",
    "cancelling",
    "canceled",
    "finished",
    "suspended",
    "reconciling",
    "missing",
)
"""The states of a job: Flink's, and ``missing`` if Flink has forgotten it."""

_DROPPED: Final = "droppedDueToLateness"
"""Beam's counter of rows dropped because their window was gone."""

_log = logging.getLogger(__name__)


class FlinkMetrics:
    """The metrics of the job that a driver follows, updated by `look`.

    As of the last look, by partition number: `watermarks_ms` has the watermark (event time), `waiting_ms` the time
    (Unix) since which brokers have not answered the partition's reader.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            made = Gauge(f"weir_pipeline_{name}", text, registry=registry)
            made.set(math.nan)
            return made

        def counter(name: str, text: str) -> Counter:
            return Counter(f"weir_pipeline_{name}", text, registry=registry)

        self.away = gauge("engine_away", "1 while Flink does not answer.")
        self.state = Gauge("weir_pipeline_job_state", "1 for the state of the job.", ["state"], registry=registry)
        self.restarts = counter("job_restarts_total", "Times that Flink has restarted the job.")
        self.failures = counter(
            "job_failures_total", "Exceptions that have stopped the tasks of the job; the log has the newest."
        )
        self.watermark = gauge(
            "job_watermark_timestamp_seconds", "Event time up to which all tasks of the job have got, Unix time."
        )
        self.partitions = Gauge(
            "weir_pipeline_partition_watermark_timestamp_seconds",
            "Event time up to which a partition of the topic is complete, Unix time; the lowest one holds the windows.",
            ["partition"],
            registry=registry,
        )
        self.unanswered = Gauge(
            "weir_pipeline_partition_unanswered_since_timestamp_seconds",
            "Since when the reader of a partition has had no answer of the brokers, Unix time; 0 while it has.",
            ["partition"],
            registry=registry,
        )
        self.uncommitted = gauge(
            "uncommitted_since_timestamp_seconds",
            "Since when the topic has had messages that are in no commit, and none came, Unix time; NaN without any.",
        )
        self.checkpoint = gauge(
            "checkpoint_timestamp_seconds",
            "When the newest checkpoint of the job was completed, before the first when the job started, Unix time.",
        )
        self.checkpoint_bytes = gauge("checkpoint_bytes", "Size of the newest completed checkpoint.")
        self.checkpoint_seconds = gauge("checkpoint_duration_seconds", "Time that the newest checkpoint took.")
        self.checkpoint_failures = counter(
            "checkpoint_failures_total", "Checkpoints of the job that were not completed."
        )
        self.dropped = counter(
            "dropped_late_rows_total", "Rows that Beam dropped because their window was gone: no commit has them."
        )
        self._created_ms = 1000 * time.time()
        self._is_away = False
        self._job, self._newest_failure_ms = "", 0
        self.newest_failure = ""
        self.watermarks_ms: dict[str, float] = {}
        self.waiting_ms: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._show("")

    @property
    def rows_dropped(self) -> float:
        """The number of rows that Beam has dropped as late, as of the last look."""
        return float(self.dropped._value.get())

    def look(self, client: FlinkClient, job: str) -> str | None:
        """Update the metrics of a job; return its state in lower case, None while Flink does not answer."""
        try:
            state = self._look(client, job)
        except FlinkAwayError as error:
            if not self._is_away:
                _log.warning("%s", error)
            self._is_away = True
            self.away.set(1)
            # The last known state may be outdated.
            self._show("")
            return None
        self._is_away = False
        self.away.set(0)
        self._show(state)
        return state

    def _look(self, client: FlinkClient, job: str) -> str:
        try:
            current = client.job(job)
            # Ask everything first, so that nothing is counted for a job that disappears meanwhile.
            failures, checkpoints = client.failures(job), client.checkpoints(job)
            restarts, dropped = client.restarts(job), client.counters(job, _DROPPED)
            watermarks, gauges = client.watermarks(job), client.gauges(job, PARTITION)
        except JobMissingError:
            return "missing"
        if job != self._job:
            self._begin(current, failures, checkpoints, restarts)
        self._add_failures(failures)
        self._add(self.restarts, "restarts", restarts)
        for task, rows in dropped.items():
            self._add(self.dropped, f"dropped {task}", rows)
        self._checkpoint(current, checkpoints)
        self.watermarks_ms, since_ms = _by_partition(gauges, WATERMARK), _by_partition(gauges, UNANSWERED)
        self.waiting_ms = {partition: ms for partition, ms in since_ms.items() if ms}
        for values, shown in ((self.watermarks_ms, self.partitions), (since_ms, self.unanswered)):
            for partition, milliseconds in values.items():
                shown.labels(partition).set(milliseconds / 1000)
        present = [value for value in watermarks.values() if value is not None]
        self.watermark.set(min(present) / 1000 if present and len(present) == len(watermarks) else math.nan)
        return current.state.lower()

    def _begin(self, job: Job, failures: list[JobFailure], checkpoints: Checkpoints, restarts: int) -> None:
        """Switch to another job, and ignore the failures that the job had before this process started."""
        self._job, self._seen, self._newest_failure_ms, self.newest_failure = job.id, {}, 0, ""
        if job.start_ms < self._created_ms:
            self._seen = {"restarts": restarts, "failed checkpoints": checkpoints.failed}
            self._newest_failure_ms = max((failure.at_ms for failure in failures), default=0)

    def _add_failures(self, failures: list[JobFailure]) -> None:
        """Count new failures of the job, and log the newest."""
        new = [failure for failure in failures if failure.at_ms > self._newest_failure_ms]
        if new:
            self.failures.inc(len(new))
            self._newest_failure_ms, self.newest_failure = new[0].at_ms, new[0].cause
            _log.error("the job has failed in %s: %s", new[0].task or "no task", new[0].cause)

    def _checkpoint(self, job: Job, newest: Checkpoints) -> None:
        """Set the metrics of the job's checkpoints."""
        self._add(self.checkpoint_failures, "failed checkpoints", newest.failed)
        self.checkpoint.set((newest.at_ms or job.start_ms) / 1000)
        self.checkpoint_bytes.set(math.nan if newest.bytes is None else newest.bytes)
        self.checkpoint_seconds.set(math.nan if newest.milliseconds is None else newest.milliseconds / 1000)

    def _add(self, counter: Counter, name: str, value: float) -> None:
        """Add the growth of a Flink counter, which restarts at 0 with each attempt of a task."""
        before = self._seen.get(name, 0)
        counter.inc(value - before if value >= before else value)
        self._seen[name] = value

    def _show(self, state: str) -> None:
        """Set the gauge of the job's state; "" for an unknown state."""
        for name in STATES:
            self.state.labels(name).set(name == state)


def _by_partition(gauges: Mapping[str, float], name: str) -> dict[str, float]:
    """Return partition number -> value, for the gauges whose keys are `name` plus a partition number."""
    return {key.removeprefix(name): value for key, value in gauges.items() if key.startswith(name)}
