"""The job of a stream: how it is submitted, found, watched and cancelled."""

import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Final

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions

from weir.contracts import Store, UserError
from weir.pipelines.config import PipelineConfig
from weir.pipelines.stream.chain import BatchesToCommits
from weir.pipelines.stream.config import StreamConfig
from weir.pipelines.stream.engine import pipeline_options
from weir.pipelines.stream.flink import FlinkClient, Job
from weir.pipelines.stream.flink_metrics import FlinkMetrics
from weir.pipelines.stream.source import PartitionSource, ReadPartitions
from weir.pipelines.stream.spans import MissingRowsError, OutOfOrderError

__all__ = ["EngineError", "FlinkJob", "JobEndedError", "submit"]

logger = logging.getLogger(__name__)

_OVER: Final = {"finished", "failed", "canceled"}
_REFUSALS: Final = (MissingRowsError.__name__, OutOfOrderError.__name__)
"""What the committer raises where its engine brings something else than the commits need, now and whenever it tries."""
_APPEARS_SECONDS: Final = 180.0
_ENDS_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.25


class EngineError(UserError):
    """The engine does not take the job, or does not do with it what it should."""


class JobEndedError(UserError):
    """The job has ended, though its driver did not want it."""


def submit(
    store: Store, config: PipelineConfig, stream: StreamConfig, sources: Sequence[PartitionSource], name: str
) -> None:
    """Hand the pipeline of a stream to Flink, which runs it without end; raises `EngineError`."""
    # Beam's parser does not know the runner's options, passes them on, and warns of each.
    logging.getLogger("apache_beam.options.pipeline_options").setLevel(logging.ERROR)
    # Given its options, Beam does not look at this process's own command line.
    pipeline = beam.Pipeline(options=PipelineOptions(pipeline_options(stream, name)))
    _ = pipeline | "Read" >> ReadPartitions(sources, stream) | "Windows" >> BatchesToCommits(store, config)
    try:
        pipeline.run()
    except (grpc.RpcError, grpc.FutureTimeoutError) as error:
        reason = error.details() if isinstance(error, grpc.Call) else "no answer"
        raise EngineError(f"Beam's job server at {stream.job_endpoint} does not take the job: {reason}") from error


class FlinkJob:
    """The job of a name on Flink; whoever submitted it, as a driver that was killed leaves its job behind.

    `flaw` is why it cannot go on and a job that starts at the commits can, empty as long as there is nothing.
    """

    def __init__(self, client: FlinkClient, name: str, metrics: FlinkMetrics) -> None:
        self._client, self._name, self._metrics = client, name, metrics
        self._id = ""
        self._state: str | None = None
        self.flaw = ""

    @property
    def obstacle(self) -> str:
        """What keeps windows from being committed, as of the last look."""
        seen = self._metrics
        if self._state is None:
            return f"Flink at {self._client.url} does not answer"
        if self._state != "running":
            return f"the job is {self._state}{f': {self.failure}' if self.failure else ''}"
        if waiting := seen.waiting_ms:
            numbers, since = ", ".join(sorted(waiting)), _spelled(min(waiting.values()))
            return f"the brokers have not answered the readers of partitions {numbers} since {since}"
        if not seen.watermarks_ms:
            return "the job runs, and no reader has started"
        partition, watermark_ms = min(seen.watermarks_ms.items(), key=itemgetter(1))
        return f"partition {partition} holds the windows: its watermark is {_spelled(watermark_ms)} (event time)"

    @property
    def failure(self) -> str:
        """What stopped its tasks last, empty before the first failure."""
        return self._metrics.newest_failure

    @property
    def watermarks_ms(self) -> dict[str, float]:
        """The watermarks of its partitions by number, event time, as of the last look; none before the first."""
        return self._metrics.watermarks_ms

    def cancel_others(self) -> None:
        """Cancel the jobs of this name that run; two of them would be safe, but do everything twice."""
        for job in self._running():
            logger.warning("job %s of an earlier driver still runs: it is cancelled", job.id)
            self._cancel(job.id)

    def appear(self) -> None:
        """Wait for the job that was submitted; raises `EngineError`."""
        end = time.monotonic() + _APPEARS_SECONDS
        while not (found := self._running()):
            if time.monotonic() > end:
                raise EngineError(f"Flink at {self._client.url} has no job {self._name}, though it was submitted")
            time.sleep(_PAUSE_SECONDS)
        self._id, self.flaw = found[0].id, ""
        logger.info("job %s runs as %s", self._id, self._name)

    def state(self) -> str | None:
        """Return its state as Flink spells it, in lower case, None while Flink does not answer; update the metrics."""
        before = self._metrics.rows_dropped
        found = self._state = self._metrics.look(self._client, self._id)
        if any(name in self._metrics.newest_failure for name in _REFUSALS):
            self.flaw = self._metrics.newest_failure
        if self._metrics.rows_dropped > before:
            self.flaw = "Beam has dropped rows for lateness, which must not be"
        return found

    def cancel(self) -> None:
        """Cancel the job, if it runs, and wait until it has ended; raises `EngineError` where it does not."""
        if any(job.id == self._id for job in self._running()):
            self._cancel(self._id)

    def _running(self) -> list[Job]:
        return [job for job in self._client.jobs() if job.name == self._name and job.state.lower() not in _OVER]

    def _cancel(self, job: str) -> None:
        self._client.cancel(job)
        end = time.monotonic() + _ENDS_SECONDS
        while self._client.job(job).state.lower() not in _OVER:
            if time.monotonic() > end:
                raise EngineError(f"job {job} was cancelled {_ENDS_SECONDS:g} s ago, and Flink has not ended it")
            time.sleep(_PAUSE_SECONDS)


def _spelled(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
