"""Read offset ranges of a topic into blocks of raw rows, or copy a topic to files."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final

import numpy as np
from confluent_kafka import KafkaError, Message, TopicPartition

from weir.contracts import EventClock, UserError
from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka_config import BrokerAwayError, Topic
from weir.pipelines.sources.kafka.client import Connection, KafkaPartition, TopicClient, connected
from weir.pipelines.sources.kafka.lines import MessageLines
from weir.pipelines.sources.plan import Seen
from weir.readers import Block, BlockId, Int64, Lines, cost_of

__all__ = ["PASSING", "CopiedTopic", "OffsetRange", "RangeReader", "copy_topic", "plan_ranges"]


@dataclass(frozen=True)
class OffsetRange:
    """Offsets [start, stop) of a partition to read, up to rows that cost about `limit` (`run_bytes`).

    Offsets below `known` have been read before, by this process or as of a commit. `clock` is the clock of the store.
    """

    partition: KafkaPartition
    start: int
    stop: int
    limit: int
    known: int = 0
    clock: EventClock = field(default_factory=EventClock)


def plan_ranges(partitions: Iterable[KafkaPartition], seen: Seen, limit: int) -> list[OffsetRange]:
    """Return the unread ranges of partitions, with a total cost of about `limit` (`run_bytes`).

    Each range gets its share of the unread offsets, so that partitions that lag stay close in event time. Partitions
    without a committed start are left out.
    """
    starts = {one: seen.start(one.key) for one in partitions if one.key in seen.known}
    unread = {one: one.size - start for one, start in starts.items() if start < one.size}
    total = sum(unread.values())
    return [
        OffsetRange(
            partition=one,
            start=starts[one],
            stop=one.size,
            limit=max(1, limit * count // total),
            known=max(seen.known[one.key].stop, seen.reached.get(one.key, 0)),
            clock=seen.clock,
        )
        for one, count in unread.items()
    ]


logger = logging.getLogger(__name__)

_BATCH: Final = 10_000
_POLL_SECONDS: Final = 0.1
PASSING: Final = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
"""Consumer errors that pass once the brokers answer again."""


@dataclass
class RangeReader:
    """Reads an offset range as blocks. Afterwards `reached` is the offset after the last message read.

    `skipped` is then the number of new messages without a value. Offsets without a message (compaction, transactions)
    are passed over. Reading ends early, between two messages, if the range exceeds its byte limit, if no broker or
    schema registry answers, or if the topic was re-created.
    """

    wanted: OffsetRange
    config: PipelineConfig
    reached: int = field(init=False)
    skipped: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.reached = self._at = self.wanted.start
        self._left = self.wanted.limit
        self._is_over = False
        self._spelling = MessageLines(self.config, self.wanted.clock)

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of the range in order; raises `KafkaSettingsError`."""
        partition = self.wanted.partition
        with connected(self.config) as connection:
            connection.consumer.assign([TopicPartition(partition.topic, partition.number, self.wanted.start)])
            while not self._is_over:
                lines, skipped = self._next(connection)
                if not self._is_same(connection):
                    return
                try:
                    lines, faults = self._spelling.spelled(lines)
                except BrokerAwayError as error:
                    logger.warning("%s; what was read is read again", error)
                    return
                start, self.reached = self.reached, self._at
                self.skipped += skipped
                yield Block(BlockId(partition.key, start), lines, faults, stop=self.reached)

    def _is_same(self, connection: Connection) -> bool:
        """Return whether the messages come from the intended topic; a topic id never returns once it is gone."""
        try:
            return connection.topic.topic_id() == self.wanted.partition.topic_id
        except UserError as error:
            connection.has_failed = True
            logger.warning("%s; what was read is read again", error)
            return False

    def _next(self, connection: Connection) -> tuple[Lines, int]:
        """Return the rows of the next block, and the number of new messages without a value."""
        parts: list[Lines] = []
        rows = size = skipped = 0
        most = min(_BATCH, self.config.chunk_rows)
        answered = monotonic()
        while not self._is_over and rows < self.config.chunk_rows and size < self.config.chunk_bytes:
            messages = connection.consumer.consume(min(most, self.wanted.stop - self._at), _POLL_SECONDS)
            if messages:
                answered = monotonic()
            elif monotonic() - answered > self.config.kafka.timeout_seconds:
                self._is_over = True
            lines, fresh = self._take(messages)
            parts.append(lines)
            rows, skipped = rows + len(lines.lines), skipped + fresh
            size, self._left = size + lines.nbytes, self._left - cost_of(len(lines.lines), lines.nbytes)
            if self._at >= self.wanted.stop or self._left <= 0:
                self._is_over = True
            elif self._is_over:
                connection.has_failed = True
        return _joined(parts), skipped

    def _take(self, messages: list[Message]) -> tuple[Lines, int]:
        """Return the rows of messages, and the number of new messages without a value."""
        good = [message for message in messages if message.error() is None]
        offsets: Int64 = np.array([message.offset() for message in good], np.int64)
        if len(offsets):
            self._at = min(int(offsets[-1]) + 1, self.wanted.stop)
        if len(good) < len(messages):
            self._hear(messages)
        taken = self._spelling.take(good[: int(np.searchsorted(offsets, self.wanted.stop))])
        return taken.lines, int((taken.valueless >= self.wanted.known).sum())

    def _hear(self, messages: list[Message]) -> None:
        """Handle the errors among consumed messages, and the end of the partition."""
        for message in messages:
            if (error := message.error()) is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                self._at = max(self._at, min(message.offset() or 0, self.wanted.stop))
            elif error.code() not in PASSING:
                logger.error("%s: %s; the next run tries again", self.wanted.partition.name, error.str())
                self._is_over = True


def _joined(parts: list[Lines]) -> Lines:
    if len(parts) == 1:
        return parts[0]
    none = np.empty(0, np.int64)
    return Lines(
        [line for part in parts for line in part.lines],
        np.concatenate([part.positions for part in parts] or [none]),
        np.concatenate([part.latest_ms for part in parts if part.latest_ms is not None] or [none]),
    )


_NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True)
class CopiedTopic:
    """The result of a copy: `rows` messages with a value; `is_whole` unless messages were left out by `newest`."""

    rows: int
    is_whole: bool


def copy_topic(
    config: PipelineConfig, folder: Path, newest: int | None = None, show: Callable[[int, int], None] | None = None
) -> CopiedTopic:
    """Write the present messages of the topic `config.log` as lines, one file per partition.

    A line break in a message becomes a blank, which is equivalent in JSON. Protobuf and Avro become JSON; a message
    that cannot be decoded becomes a line that the readers refuse, as the pipeline does.

    Parameters
    ----------
    folder
        Receives the files `0.jsonl`, `1.jsonl` and so on.
    newest
        Copy about this many messages, the last ones of each partition; None: all from `pipeline.kafka.start` on.
    show
        Called with the number of offsets read, and their total.

    Raises
    ------
    TopicMissingError, KafkaSettingsError
        If the topic does not exist, or no client can be created.
    BrokerAwayError
        If no broker answers, or messages up to the end at the start of the copy cannot be read.
    """
    client = TopicClient(Topic.parse(config.log), config.kafka)
    partitions = client.partitions()
    begin = client.begin(partitions)
    each = _NO_LIMIT if newest is None else -(-newest // max(1, len(partitions)))
    starts = {one: max(begin[one.number], one.first) for one in partitions}
    ranges = [OffsetRange(one, max(start, one.size - each), one.size, _NO_LIMIT) for one, start in starts.items()]
    total, done, rows = sum(one.stop - one.start for one in ranges), 0, 0
    for one in ranges:
        for count, reached in _copy(one, config, folder):
            rows += count
            if show is not None:
                show(done + reached - one.start, total)
        done += one.stop - one.start
    return CopiedTopic(rows, all(one.start == starts[one.partition] for one in ranges))


def _copy(wanted: OffsetRange, config: PipelineConfig, folder: Path) -> Iterator[tuple[int, int]]:
    """Write the messages of a range as a file; yield the number of lines and the end offset of each block."""
    if wanted.start >= wanted.stop:
        return
    reader = RangeReader(wanted, config)
    with (folder / f"{wanted.partition.number}.jsonl").open("wb") as file:
        for block in reader.blocks():
            lines = block.content.lines if isinstance(block.content, Lines) else []
            values = [*lines, *(raw for _, _, raw in block.faults)]
            file.writelines(value.replace(b"\n", b" ") + b"\n" for value in values)
            yield len(values), reader.reached
    if reader.reached < wanted.stop:
        raise BrokerAwayError(
            f"{config.log}: {wanted.partition.name} was read to offset {reader.reached} of {wanted.stop}, then the "
            f"brokers sent nothing for {config.kafka.timeout_seconds:g} s, or the topic was created again; try again"
        )
