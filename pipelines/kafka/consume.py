"""Offsets of a topic to blocks of raw rows: messages are taken in large batches and decoded together, as lines are."""

import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from contracts import EventClock, UserError
from logs import Block, BlockId, Fault, Int64, Lines
from pipelines.config import PipelineConfig
from pipelines.kafka.address import Topic
from pipelines.kafka.client import TopicClient, client_settings
from pipelines.kafka.errors import KafkaSettingsError
from pipelines.kafka.messages import to_line
from pipelines.kafka.ranges import OffsetRange

__all__ = ["RangeReader", "connected", "latest_event_times"]

logger = logging.getLogger(__name__)

_BATCH: Final = 10_000
_POLL_SECONDS: Final = 0.1
_ROW_BYTES: Final = 64
"""What a message takes besides its value, roughly."""
_PASSING: Final = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
_NO_LIMIT: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Connection:
    """A consumer, and a client that knows which topic it reads."""

    consumer: Consumer
    topic: TopicClient

    @classmethod
    def open(cls, config: PipelineConfig) -> "Connection":
        """Return a new one; raises `KafkaSettingsError`."""
        topic = Topic.parse(config.log)
        settings: dict[str, Any] = {
            # With its default of a second, consuming stops whenever the queue was full.
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": 16_384,
            **client_settings(topic, config.kafka),
            # Required, but positions are in the commits: nobody joins this group.
            "group.id": "weir",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }
        try:
            return cls(Consumer(settings), TopicClient(topic, config.kafka))
        except KafkaException as error:
            raise KafkaSettingsError(f"pipeline.kafka.options: {error.args[0].str()}") from error


_idle: dict[str, list[Connection]] = defaultdict(list)
"""Connections of this process that nobody uses: to open one takes longer than to read what comes in a second."""


@contextmanager
def connected(config: PipelineConfig) -> Iterator[Connection]:
    """Lend a connection of this process."""
    free = _idle[f"{config.log} {config.kafka.model_dump_json()}"]
    connection = free.pop() if free else Connection.open(config)
    try:
        yield connection
    except BaseException:
        connection.consumer.close()
        raise
    connection.consumer.unassign()
    free.append(connection)


@dataclass
class RangeReader:
    """Reads a range; afterwards `reached` is the offset up to which it was read, `skipped` counts what had no value.

    Offsets without a message (compaction, transactions) are no holes. It ends early, at a place between two messages,
    where the range has more bytes than it may have, where no broker answers, and where the topic is another one now.
    """

    wanted: OffsetRange
    config: PipelineConfig
    reached: int = field(init=False)
    skipped: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.reached = self._at = self.wanted.start
        self._left = self.wanted.limit
        self._is_over = False
        self._to_line = to_line(self.config)

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks; raises `KafkaSettingsError`."""
        partition = self.wanted.partition
        with connected(self.config) as connection:
            connection.consumer.assign([TopicPartition(partition.topic, partition.number, self.wanted.start)])
            while not self._is_over:
                lines, skipped = self._next(connection.consumer)
                if not self._is_same(connection.topic):
                    return
                start, self.reached = self.reached, self._at
                self.skipped += skipped
                lines, faults = self._spelled(lines)
                yield Block(BlockId(partition.key, start), lines, faults, stop=self.reached)

    def _spelled(self, values: Lines) -> tuple[Lines, tuple[tuple[int, Fault, bytes], ...]]:
        """Return the lines that values mean, and what is wrong with the others, by position."""
        if self._to_line is None:
            return values, ()
        found = [self._to_line(value) for value in values.lines]
        good = np.array([not isinstance(one, Fault) for one in found], np.bool_)
        lines = [one for one in found if not isinstance(one, Fault)]
        latest = None if values.latest_ms is None else values.latest_ms[good]
        faults = (
            (position, one, value)
            for position, one, value in zip(values.positions.tolist(), found, values.lines, strict=True)
            if isinstance(one, Fault)
        )
        return Lines(lines, values.positions[good], latest), tuple(faults)

    def _is_same(self, topic: TopicClient) -> bool:
        """Say whether what was read came from the topic that was meant; an identity that is gone never returns."""
        try:
            return topic.topic_id() == self.wanted.partition.topic_id
        except UserError as error:
            logger.warning("%s; what was read is read again", error)
            return False

    def _next(self, consumer: Consumer) -> tuple[Lines, int]:
        """Return the rows of the next block, and how many messages without a value are new among them."""
        parts: list[Lines] = []
        rows = size = skipped = 0
        most = min(_BATCH, self.config.chunk_rows)
        answered = monotonic()
        while not self._is_over and rows < self.config.chunk_rows and size < self.config.chunk_bytes:
            messages = consumer.consume(min(most, self.wanted.stop - self._at), _POLL_SECONDS)
            if messages:
                answered = monotonic()
            elif monotonic() - answered > self.config.kafka.timeout_seconds:
                self._is_over = True
            lines, fresh = self._take(messages)
            parts.append(lines)
            rows, skipped = rows + len(lines.lines), skipped + fresh
            read = sum(map(len, lines.lines)) + _ROW_BYTES * len(lines.lines)
            size, self._left = size + read, self._left - read
            self._is_over |= self._at >= self.wanted.stop or self._left <= 0
        return _joined(parts), skipped

    def _take(self, messages: list[Message]) -> tuple[Lines, int]:
        """Return the rows of messages, and how many without a value are new."""
        good = [message for message in messages if message.error() is None]
        offsets: Int64 = np.array([message.offset() for message in good], np.int64)
        if len(offsets):
            self._at = min(int(offsets[-1]) + 1, self.wanted.stop)
        if len(good) < len(messages):
            self._hear(messages)
        inside = int(np.searchsorted(offsets, self.wanted.stop))
        good, offsets = good[:inside], offsets[:inside]
        values = [message.value() or b"" for message in good]
        stamps = np.array([message.timestamp()[1] for message in good], np.int64)
        latest = latest_event_times(stamps, self.wanted.clock, self.config.clock_tolerance_minutes)
        kept = np.array([bool(value) and not value.isspace() for value in values], np.bool_)
        fresh = int((~kept & (offsets >= self.wanted.known)).sum())
        lines = [value for value, keep in zip(values, kept, strict=True) if keep]
        return Lines(lines, offsets[kept], latest[kept]), fresh

    def _hear(self, messages: list[Message]) -> None:
        """Take note of what came besides messages."""
        for message in messages:
            if (error := message.error()) is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                self._at = max(self._at, min(message.offset() or 0, self.wanted.stop))
            elif error.code() not in _PASSING:
                logger.error("%s: %s; the next run tries again", self.wanted.partition.name, error.str())
                self._is_over = True


def latest_event_times(stamps: Int64, clock: EventClock, tolerance_minutes: float) -> Int64:
    """Return the newest event time (ms) that messages with these timestamps (ms, n) may have; shape (n,).

    As for files (`logs.arrival`): the event time at which they arrived, and the tolerance for clocks that run ahead.
    Seconds are rounded up. Without a timestamp there is no bound.
    """
    seconds, place = np.unique(stamps // 1000 + 1, return_inverse=True)
    arrived = (max(float(second), clock.wall_origin) for second in seconds.tolist())
    latest = np.array([clock.event_ms(second) for second in arrived], np.int64) + round(60_000 * tolerance_minutes)
    found: Int64 = np.where(stamps < 0, _NO_LIMIT, latest[place])
    return found


def _joined(parts: list[Lines]) -> Lines:
    if len(parts) == 1:
        return parts[0]
    none = np.empty(0, np.int64)
    return Lines(
        [line for part in parts for line in part.lines],
        np.concatenate([part.positions for part in parts] or [none]),
        np.concatenate([part.latest_ms for part in parts if part.latest_ms is not None] or [none]),
    )
