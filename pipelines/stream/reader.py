"""Topic partitions as unbounded Beam sources: messages to validated batches and watermarks."""

import logging
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.coders import Coder
from apache_beam.io.unbounded_source import (
    CheckpointMark,
    UnboundedReader,
    UnboundedSource,
    _ReadFromUnboundedSourceDoFn,
)
from apache_beam.metrics.metric import Metrics
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

from weir.contracts import EventClock
from weir.contracts.base import columns
from weir.contracts.base.models import FrozenModel
from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka_config import BrokerAwayError
from weir.pipelines.sources.kafka.client import KafkaPartition, PendingRequest
from weir.pipelines.sources.kafka.lines import MessageLines, Taken
from weir.pipelines.stream.config import StreamConfig
from weir.pipelines.stream.consumers import Fetched, LostError, PartitionConsumer, consumer_of
from weir.pipelines.stream.watermark import Watermark
from weir.pipelines.transforms.read import large
from weir.readers import Block, BlockId, DeadLetter, Int64, Lines, Validator

__all__ = [
    "PARTITION",
    "UNANSWERED",
    "WATERMARK",
    "Batch",
    "Mark",
    "MarkCoder",
    "PartitionReader",
    "PartitionSource",
    "ReadPartitions",
    "Reading",
]


PARTITION: Final = "partition_"
"""Prefix of the names of the readers' Beam gauges, which end with the partition number."""
WATERMARK: Final = "watermark_ms_"
"""The watermark of the partition."""
UNANSWERED: Final = "unanswered_ms_"
"""Since when the reader has had no answer from the brokers, Unix time; 0 while they answer."""

logger = logging.getLogger(__name__)

_FORM: Final = struct.Struct(">qq")
_ANSWER_SECONDS: Final = 0.2
_CHECK_SECONDS: Final = 5.0
"""Pause between two checks of the topic id of a silent partition."""


class Reading(FrozenModel):
    """What a reader reads: a partition from offset `start` on, with the first watermark `watermark_ms` (event time).

    `job` is unique among the jobs of the store, `clock` is the clock of the store, `batch_messages` limits a batch.
    """

    job: str
    partition: KafkaPartition
    start: int
    watermark_ms: int
    config: PipelineConfig
    clock: EventClock
    batch_messages: int


@dataclass(frozen=True)
class Mark(CheckpointMark):
    """A Beam checkpoint of a reader: the offset of the next batch, and the watermark before that batch (ms)."""

    start: int
    watermark_ms: int


class MarkCoder(Coder):
    """Encodes a mark as two big-endian 64-bit integers."""

    def encode(self, value: Mark) -> bytes:
        """Return 16 bytes."""
        return _FORM.pack(value.start, value.watermark_ms)

    def decode(self, encoded: bytes) -> Mark:
        """Return the mark that 16 bytes encode."""
        return Mark(*_FORM.unpack(encoded))

    def is_deterministic(self) -> bool:
        """Return True: Beam compares encoded marks to find a reader that it has kept."""
        return True


@large
@dataclass(frozen=True)
class Batch:
    """Positions [start, stop) of a partition: valid rows (`INTERACTION_SCHEMA`) and dead letters.

    Batches tile a partition: `start` is the `stop` of the batch before, and offsets without a message, or with a
    message without a value (`skipped`), belong to the batch that passes over them. `job` stays the same when the engine
    restarts it. `watermark_ms` is the partition's watermark before the batch (event time), and the Beam time of the
    element. `size` is the end of the partition when the batch was read.
    """

    partition: str
    job: str
    start: int
    stop: int
    watermark_ms: int
    size: int
    rows: pa.RecordBatch
    letters: tuple[DeadLetter, ...]
    skipped: Int64

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(self.rows.nbytes)


class PartitionReader(UnboundedReader):
    """Reads a partition batch by batch, from a mark, or else from the start of its source.

    It ends for good, so that it does not hold back windows, if the topic was re-created or the broker has lost the
    offset to read. The batches before are committed; the driver detects the cause and logs it.
    """

    def __init__(self, reading: Reading, mark: Mark | None) -> None:
        config = reading.config
        self._reading = reading
        self._at = mark.start if mark else reading.start
        self._watermark = Watermark(
            ms=mark.watermark_ms if mark else reading.watermark_ms,
            lateness_ms=1000 * config.allowed_lateness_seconds,
            idle_ms=_event_ms(reading.clock, config.idle_seconds),
        )
        self._spelling = MessageLines(config, reading.clock)
        self._validator = Validator(config)
        self._waiting: tuple[Batch, Taken, PendingRequest[str]] | None = None
        self._current: Batch | None = None
        self._question: PendingRequest[str] | None = None
        self._next_question = 0.0
        self._is_over = False
        number = reading.partition.number
        self._shown = Metrics.gauge("weir", f"{PARTITION}{WATERMARK}{number}")
        self._unanswered = Metrics.gauge("weir", f"{PARTITION}{UNANSWERED}{number}")

    def start(self) -> bool:
        """Read the first batch; return whether there is one."""
        return self.advance()

    def advance(self) -> bool:
        """Read the next batch, waiting .4 s at most; return whether there is one."""
        has_batch = not self._is_over and self._advance()
        self._shown.set(self._watermark.ms)
        return has_batch

    def _advance(self) -> bool:
        consumer = consumer_of(self._reading.config, self._reading.partition)
        self._unanswered.set(round(1000 * (consumer.client.unanswered_since or 0)))
        try:
            if self._waiting is None:
                self._read(consumer)
            if self._waiting is not None:
                return self._accept()
            self._follow_clock(consumer)
        except LostError as error:
            self._end(f"the broker has nothing at offset {self._at} any more ({error})")
        except BrokerAwayError as error:
            # The topic of the messages is unknown: read them again.
            logger.warning("%s; what was read is read again", error)
            self._waiting = None
        return False

    def _read(self, consumer: PartitionConsumer) -> None:
        """Read and validate a batch, which waits until the brokers have confirmed the topic id."""
        reading = self._reading
        fetched = consumer.fetch(self._at, reading.batch_messages, reading.config.chunk_bytes)
        if fetched is not None:
            request = consumer.client.ask_topic_id()
            taken = self._spelling.take(fetched.messages)
            self._waiting = self._batch(fetched, taken), taken, request

    def _batch(self, fetched: Fetched, taken: Taken) -> Batch:
        """Return the validated rows and dead letters of fetched messages."""
        lines, faults = self._spelling.spelled(taken.lines)
        key = self._reading.partition.key
        valid, letters = self._validator.validate(Block(BlockId(key, self._at), lines, faults, fetched.stop))
        return Batch(
            partition=key,
            job=self._reading.job,
            start=self._at,
            stop=fetched.stop,
            watermark_ms=self._watermark.ms,
            size=fetched.size,
            rows=valid.rows,
            letters=letters.letters,
            skipped=taken.valueless,
        )

    def _accept(self) -> bool:
        """Make the waiting batch current once the topic id is confirmed; end the reader if the topic was re-created.

        Return whether there is a new current batch. Raises `BrokerAwayError`.
        """
        if self._waiting is None or (topic_id := self._waiting[2].answer(_ANSWER_SECONDS)) is None:
            return False
        (batch, taken, _), self._waiting = self._waiting, None
        if topic_id != self._reading.partition.topic_id:
            self._end("its topic was deleted and created again")
            return False
        self._current, self._at = batch, batch.stop
        newest = _newest(batch, taken.lines, self._reading.config.clock_tolerance_minutes)
        self._watermark.read(newest, taken.arrived_ms, self._reading.clock.event_ms())
        return True

    def _follow_clock(self, consumer: PartitionConsumer) -> None:
        """Advance the watermark with the clock while the partition has no unread messages."""
        until = consumer.silent_until(self._at)
        if until is not None:
            self._watermark.silent(self._reading.clock.event_ms(until))
        self._check_topic(consumer)

    def _check_topic(self, consumer: PartitionConsumer) -> None:
        """Check the topic id of a silent partition at intervals; end the reader if the topic was re-created."""
        if self._question is None:
            if time.monotonic() >= self._next_question:
                self._question = consumer.client.ask_topic_id()
                self._next_question = time.monotonic() + _CHECK_SECONDS
            return
        question, self._question = self._question, None
        try:
            topic_id = question.answer()
        except BrokerAwayError as error:
            logger.debug("%s", error)
            return
        if topic_id is None:
            self._question = question
        elif topic_id != self._reading.partition.topic_id:
            self._end("its topic was deleted and created again")

    def _end(self, why: str) -> None:
        """End the reader for good, and log why."""
        logger.error("%s ends: %s", self._reading.partition.name, why)
        self._is_over = True

    def get_current(self) -> Batch:
        """Return the current batch."""
        if self._current is None:
            raise ValueError("nothing was read yet")
        return self._current

    def get_current_timestamp(self) -> Any:
        """Return the watermark before the batch."""
        return Timestamp(micros=1000 * self.get_current().watermark_ms)

    def get_watermark(self) -> Any:
        """Return the watermark after the batches read so far."""
        return MAX_TIMESTAMP if self._is_over else Timestamp(micros=1000 * self._watermark.ms)

    def get_checkpoint_mark(self) -> Mark:
        """Return the start of the next batch."""
        return Mark(self._at, self._watermark.ms)


def _newest(batch: Batch, lines: Lines, tolerance_minutes: float) -> int | None:
    """Return the newest event time (ms) of a batch, each limited to the arrival of its message; None without rows."""
    if not batch.rows.num_rows:
        return None
    times = batch.rows.column(columns.TIMESTAMP).to_numpy()
    if lines.latest_ms is not None:
        places = np.searchsorted(lines.positions, batch.rows.column(columns.POSITION).to_numpy())
        times = np.minimum(times, lines.latest_ms[places] - round(60_000 * tolerance_minutes))
    return int(times.max())


def _event_ms(clock: EventClock, seconds: float) -> int:
    """Convert a span of wall time (s) to event time (ms)."""
    return round(1000 * seconds * clock.speed)


class PartitionSource(UnboundedSource):
    """The Beam source of one partition.

    Its pickle is deterministic, because engines distribute and find work by the bytes of an element.
    """

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return _restored, (self.reading.model_dump_json(),)

    def split(self, desired_num_splits: int, options: Any = None) -> list["PartitionSource"]:  # noqa: ARG002 - Beam's
        """Return itself: a partition has one reader."""
        return [self]

    def create_reader(self, options: Any, checkpoint_mark: Any) -> PartitionReader:  # noqa: ARG002 - Beam's
        """Return a reader that continues at a `Mark`, or starts if there is none."""
        return PartitionReader(self.reading, checkpoint_mark)

    def get_checkpoint_mark_coder(self) -> MarkCoder:
        """Return the coder of marks."""
        return MarkCoder()


def _restored(reading: str) -> PartitionSource:
    return PartitionSource(Reading.model_validate_json(reading))


class ReadPartitions(beam.PTransform[Any, Any]):
    """Reads partitions: the first transform of a pipeline, which yields `Batch`es timestamped by their watermarks.

    Replaces `beam.io.Read`, which makes one element of all partitions, so that the engine would read them on one
    worker.
    """

    def __init__(self, sources: Sequence[PartitionSource], config: StreamConfig) -> None:
        super().__init__()
        self._sources, self._config = sources, config

    def expand(self, start: Any) -> Any:
        """Add the transforms."""
        config = self._config
        read = _ReadFromUnboundedSourceDoFn(config.poll_seconds, config.bundle_batches, config.bundle_seconds)
        return (
            start
            | "Partitions" >> beam.Create(self._sources, reshuffle=False)
            | "Read" >> beam.ParDo(read).with_output_types(Batch)
        )
