"""The Flink job of a stream: its start offsets and transforms, and how to submit, watch and cancel it."""

import logging
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from secrets import token_hex
from typing import Any, Final

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import FixedWindows

from weir.contracts import Commit, CommitLog, CommitTakenError, EventClock, LogState, Store, UserError
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.run_registry import append
from weir.pipelines.sources.kafka.client import KafkaPartition
from weir.pipelines.sources.kafka.source import TopicSource
from weir.pipelines.sources.plan import InHand
from weir.pipelines.stream.committer import CommitWindow
from weir.pipelines.stream.config import StreamConfig
from weir.pipelines.stream.flink_client import FlinkClient, Job, pipeline_options
from weir.pipelines.stream.flink_metrics import FlinkMetrics
from weir.pipelines.stream.reader import PartitionSource, Reading, ReadPartitions
from weir.pipelines.stream.slices import MissingRowsError, OutOfOrderError, Scatter, Slice

__all__ = [
    "BatchesToCommits",
    "EngineError",
    "FlinkJob",
    "JobEndedError",
    "commit_starts",
    "first_watermark",
    "sources",
    "submit",
]

logger = logging.getLogger(__name__)

_OVER: Final = {"finished", "failed", "canceled"}
_REFUSALS: Final = (MissingRowsError.__name__, OutOfOrderError.__name__)
"""Errors of the committer that persist on every retry: the engine did not deliver what the commits need."""
_APPEARS_SECONDS: Final = 180.0
_ENDS_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.25


def commit_starts(store: Store, source: TopicSource, state: LogState, partitions: list[KafkaPartition]) -> None:
    """Commit the start offsets of partitions without a committed one; add the commit to `state`.

    With `accept_gap`, partitions that have lost messages get a new start offset, too. Raises `BrokerAwayError`, and
    `MovedStoreError` if another writer has moved the log meanwhile.
    """
    log = CommitLog(store)
    while found := source.starts(partitions, state, InHand()):
        try:
            append(log, state, sources=found)
        except CommitTakenError:
            state.catch_up(log)
            source.check(store, state)


def sources(
    partitions: Iterable[KafkaPartition],
    state: LogState,
    config: PipelineConfig,
    stream: StreamConfig,
    clock: EventClock,
) -> list[PartitionSource]:
    """Return the Beam sources of a new job, one per partition, which start at the committed offsets.

    All partitions need a committed start (`commit_starts`); `clock` is the clock of the store.
    """
    watermark_ms, job = first_watermark(state, config.window_ms), token_hex(8)
    return [
        PartitionSource(
            Reading(
                job=job,
                partition=partition,
                start=state.sources[partition.key].resume,
                watermark_ms=watermark_ms,
                config=config,
                clock=clock,
                batch_messages=stream.batch_messages,
            )
        )
        for partition in partitions
    ]


def first_watermark(state: LogState, window_ms: int) -> int:
    """Return the first watermark (event time, ms): the end of the newest committed window, or the horizon if later.

    Rows of earlier windows that the job reads again come with its first window, where the committer drops them as
    counted.
    """
    newest = [state.starts[-1] + window_ms] if state.starts else []
    return max([*newest, state.horizon.ms if state.horizon else 0, 0])


class BatchesToCommits(beam.PTransform[Any, Any]):
    """Turns `Batch`es, timestamped by their watermarks, into one `Commit` per window once the watermark has passed it.

    The engine only reads partitions in parallel, groups rows by window and detects complete windows. It never decides
    which rows count.
    """

    def __init__(self, store: Store, config: PipelineConfig) -> None:
        super().__init__()
        self._store = store
        self._config = config

    def expand(self, batches: Any) -> Any:
        """Add the transforms."""
        store, config = self._store, self._config
        return (
            batches
            | "Scatter" >> beam.ParDo(Scatter(store, config.window_ms)).with_output_types(Slice)
            | "Window" >> beam.WindowInto(FixedWindows(config.window_ms / 1000))
            | "One committer" >> beam.Map(_to_one).with_output_types(tuple[int, Slice])
            | "Group the window" >> beam.GroupByKey()
            | "Commit" >> beam.ParDo(CommitWindow(store, config)).with_output_types(Commit)
        )


def _to_one(part: Slice) -> tuple[int, Slice]:
    """Give every slice one key, so that one worker commits the window."""
    return 0, part


class EngineError(UserError):
    """The engine does not accept the job, or does not handle it as it should."""


class JobEndedError(UserError):
    """The job has failed, or was cancelled outside its driver."""


def submit(
    store: Store, config: PipelineConfig, stream: StreamConfig, sources: Sequence[PartitionSource], name: str
) -> None:
    """Submit the pipeline of a stream to Flink, where it runs without end; raises `EngineError`."""
    # Beam's parser passes on the runner's options, but warns about each.
    logging.getLogger("apache_beam.options.pipeline_options").setLevel(logging.ERROR)
    # With explicit options, Beam ignores the command line of this process.
    pipeline = beam.Pipeline(options=PipelineOptions(pipeline_options(stream, name)))
    _ = pipeline | "Read" >> ReadPartitions(sources, stream) | "Windows" >> BatchesToCommits(store, config)
    try:
        pipeline.run()
    except (grpc.RpcError, grpc.FutureTimeoutError) as error:
        reason = error.details() if isinstance(error, grpc.Call) else "no answer"
        raise EngineError(f"Beam's job server at {stream.job_endpoint} does not take the job: {reason}") from error


class FlinkJob:
    """The Flink job of a given name: finds, watches and cancels it, also if a killed driver has left it.

    `flaw` is the reason why the job must be replaced by a new one from the committed offsets, "" without a reason.
    """

    def __init__(self, client: FlinkClient, name: str, metrics: FlinkMetrics) -> None:
        self._client, self._name, self._metrics = client, name, metrics
        self._id = ""
        self._state: str | None = None
        self.flaw = ""

    @property
    def obstacle(self) -> str:
        """The likely reason why no window is committed, as of the last call of `state`."""
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
        """The newest failure of the job's tasks, "" before the first."""
        return self._metrics.newest_failure

    @property
    def watermarks_ms(self) -> dict[str, float]:
        """Partition number -> watermark (event time, ms), as of the last call of `state`; empty before."""
        return self._metrics.watermarks_ms

    def cancel_others(self) -> None:
        """Cancel running jobs of this name; two jobs would be safe, but do all work twice."""
        for job in self._running():
            logger.warning("job %s of an earlier driver still runs: it is cancelled", job.id)
            self._cancel(job.id)

    def appear(self) -> None:
        """Wait until Flink lists the submitted job; raises `EngineError`."""
        end = time.monotonic() + _APPEARS_SECONDS
        while not (jobs := self._running()):
            if time.monotonic() > end:
                raise EngineError(f"Flink at {self._client.url} has no job {self._name}, though it was submitted")
            time.sleep(_PAUSE_SECONDS)
        self._id, self.flaw = jobs[0].id, ""
        logger.info("job %s runs as %s", self._id, self._name)

    def state(self) -> str | None:
        """Return the job's Flink state in lower case, None while Flink does not answer; update the metrics."""
        before = self._metrics.rows_dropped
        state = self._state = self._metrics.look(self._client, self._id)
        if any(name in self._metrics.newest_failure for name in _REFUSALS):
            self.flaw = self._metrics.newest_failure
        if self._metrics.rows_dropped > before:
            self.flaw = "Beam has dropped rows for lateness, which must not be"
        return state

    def cancel(self) -> None:
        """Cancel the job if it runs, and wait for its end; raises `EngineError` if it does not end."""
        if any(job.id == self._id for job in self._running()):
            self._cancel(self._id)

    def _running(self) -> list[Job]:
        """Return the jobs of this name that have not ended, newest first."""
        return [job for job in self._client.jobs() if job.name == self._name and job.state.lower() not in _OVER]

    def _cancel(self, job: str) -> None:
        """Cancel a job by its id, and wait for its end; raises `EngineError` if it does not end."""
        self._client.cancel(job)
        end = time.monotonic() + _ENDS_SECONDS
        while self._client.job(job).state.lower() not in _OVER:
            if time.monotonic() > end:
                raise EngineError(f"job {job} was cancelled {_ENDS_SECONDS:g} s ago, and Flink has not ended it")
            time.sleep(_PAUSE_SECONDS)


def _spelled(milliseconds: float) -> str:
    """Return a time (Unix, ms) as text in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
