"""Offsets of a topic to blocks of raw rows: messages are taken in large batches and decoded together, as lines are."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

import numpy as np
from confluent_kafka import KafkaError, Message, TopicPartition

from weir.contracts import UserError
from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka.connection import Connection, connected
from weir.pipelines.kafka.errors import BrokerAwayError
from weir.pipelines.kafka.lines import MessageLines
from weir.pipelines.kafka.ranges import OffsetRange
from weir.readers import Block, BlockId, Int64, Lines, cost_of

__all__ = ["PASSING", "RangeReader"]

logger = logging.getLogger(__name__)

_BATCH: Final = 10_000
_POLL_SECONDS: Final = 0.1
PASSING: Final = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
"""Errors of a consumer that pass when the brokers answer again."""


@dataclass
class RangeReader:
    """Reads a range; afterwards `reached` is the offset up to which it was read, `skipped` counts what had no value.

    Offsets without a message (compaction, transactions) are no holes. It ends early, at a place between two messages,
    where the range has more bytes than it may have, where no broker or no schema registry answers, and where the topic
    is another one now.
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
        """Yield the blocks; raises `KafkaSettingsError`."""
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
        """Say whether what was read came from the topic that was meant; an identity that is gone never returns."""
        try:
            return connection.topic.topic_id() == self.wanted.partition.topic_id
        except UserError as error:
            connection.has_failed = True
            logger.warning("%s; what was read is read again", error)
            return False

    def _next(self, connection: Connection) -> tuple[Lines, int]:
        """Return the rows of the next block, and how many messages without a value are new among them."""
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
        """Return the rows of messages, and how many without a value are new."""
        good = [message for message in messages if message.error() is None]
        offsets: Int64 = np.array([message.offset() for message in good], np.int64)
        if len(offsets):
            self._at = min(int(offsets[-1]) + 1, self.wanted.stop)
        if len(good) < len(messages):
            self._hear(messages)
        taken = self._spelling.take(good[: int(np.searchsorted(offsets, self.wanted.stop))])
        return taken.lines, int((taken.valueless >= self.wanted.known).sum())

    def _hear(self, messages: list[Message]) -> None:
        """Take note of what came besides messages."""
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
