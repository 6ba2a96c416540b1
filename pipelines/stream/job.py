"""The job of a stream: its transforms, where it starts, and how it is submitted, watched and cancelled."""

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
from weir.pipelines.stream.flink import FlinkClient, Job, pipeline_options
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


def commit_starts(store: Store, source: TopicSource, state: LogState, partitions: list[KafkaPartition]) -> None:
    """Commit where partitions start of which no commit says it; `state` follows.

    With `accept_gap` also where those go on whose messages are gone. Raises `BrokerAwayError`, and `MovedStoreError`
    where another writer has moved the log meanwhile.
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
    """Return partitions for a new job, from where the commits are.

    All have a start (`commit_starts`); `clock` is the store's.
    """
    watermark_ms, job = first_watermark(state, config.window_ms), token_hex(8)
    return [
        PartitionSource(
            Reading(
                job=job,
                partition=one,
                start=state.sources[one.key].resume,
                watermark_ms=watermark_ms,
                config=config,
                clock=clock,
                batch_messages=stream.batch_messages,
            )
        )
        for one in partitions
    ]


def first_watermark(state: LogState, window_ms: int) -> int:
    """Return the event time (ms) at which partitions go on: the end of the newest window that is committed.

    What is read again of windows before comes with the next one, all of it at once, and is recognised.
    """
    newest = [state.starts[-1] + window_ms] if state.starts else []
    return max([*newest, state.horizon.ms if state.horizon else 0, 0])


class BatchesToCommits(beam.PTransform[Any, Any]):
    """`Batch`es, each at the time of its watermark, to the `Commit` of each window, when the watermark passes its end.

    The engine does what it is good at: it reads partitions in parallel, brings what belongs to a window together and
    says when it is complete. What a row accounts for, it never decides.
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
    return 0, part


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
