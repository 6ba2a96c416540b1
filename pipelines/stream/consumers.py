"""Consumers of this process, one for each partition.

Consumers are shared by the process: Beam keeps readers per instance of its transform, a bundle often meets another
instance, and opening a consumer takes longer than reading the messages of a second.
"""

import logging
import time
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka_config import BrokerAwayError, Topic
from weir.pipelines.sources.kafka.client import (
    KafkaPartition,
    PendingRequest,
    ReplaceableClient,
    TopicClient,
    new_consumer,
)
from weir.pipelines.sources.kafka.consume import PASSING

__all__ = ["UNASKED_SECONDS", "Fetched", "LostError", "PartitionConsumer", "Silence", "consumer_of"]


UNASKED_SECONDS: Final = 5.0


@dataclass
class Silence:
    """How long the brokers have reported that a partition has no unread messages.

    Times are wall-clock seconds of the request, so a late answer claims nothing more. A gap between requests longer
    than `idle_seconds`, or `UNASKED_SECONDS` if that is longer, ends the silence: after an outage, producers send their
    backlog.
    """

    idle_seconds: float
    _since: float | None = None
    _until: float | None = None

    @property
    def _patience(self) -> float:
        return max(self.idle_seconds, UNASKED_SECONDS)

    def broken(self) -> None:
        """Restart: there was something to read, or no answer."""
        self._since = self._until = None

    def answered(self, asked_at: float) -> bool:
        """Record an empty partition at `asked_at`; return whether the silence has lasted for `idle_seconds`."""
        if self._since is None or self._until is None or not 0 <= asked_at - self._until <= self._patience:
            self._since = asked_at
        self._until = asked_at
        return asked_at - self._since >= self.idle_seconds


logger = logging.getLogger(__name__)

_UNUSED_SECONDS: Final = 60.0
_PIECE: Final = 2048
"""Messages consumed per call; their bytes are counted between calls."""
_WAIT_SECONDS: Final = 0.05
_FIRST_WAIT_SECONDS: Final = 0.2
"""Wait after a change of position, when nothing has been fetched yet."""
_ASK_AGAIN: Final = 4
"""Requests per `idle_seconds` about a partition without messages."""
_LONGEST_PAUSE_SECONDS: Final = 2.0


class LostError(Exception):
    """The broker does not have this offset any more."""


@dataclass(frozen=True)
class Fetched:
    """Consecutive messages of a partition; `stop` is the offset after them, `size` the partition's end."""

    messages: list[Message]
    stop: int
    size: int


@dataclass
class PartitionConsumer:
    """Reads one partition at the position of its current reader; `client` asks about the topic.

    A consumer that brings nothing for seconds, although the brokers report more messages, is replaced.
    """

    partition: KafkaPartition
    idle_seconds: float
    consumer: ReplaceableClient[Consumer]
    client: TopicClient
    silence: Silence = field(init=False)
    used: float = field(default_factory=time.monotonic, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)
    _assigned: Consumer | None = field(default=None, init=False)
    _at: int | None = field(default=None, init=False)
    _problem: KafkaError | None = field(default=None, init=False)
    _said: int | None = field(default=None, init=False)
    _asked: PendingRequest[int] | None = field(default=None, init=False)
    _next_question: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.silence = Silence(self.idle_seconds)

    def fetch(self, start: int, most: int, most_bytes: int) -> Fetched | None:
        """Return about `most` messages or `most_bytes` from `start` on; None if there are none.

        Waits .2 s at most. Raises `LostError`.
        """
        with self._lock:
            self.used = time.monotonic()
            wait, consumer = _WAIT_SECONDS, self.consumer.client
            if self._at != start or consumer is not self._assigned:
                consumer.assign([self._place(start)])
                self._assigned, self._at, self._problem, wait = consumer, start, None, _FIRST_WAIT_SECONDS
            messages = self._take(consumer, most, most_bytes, wait)
            stop = self._at
            if stop == start:
                self._judge()
                return None
            self.consumer.worked(consumer)
            self.silence.broken()
            _, end = consumer.get_watermark_offsets(self._place(start), cached=True) or (0, 0)
            return Fetched(messages, stop, max(stop, end))

    def _place(self, offset: int) -> TopicPartition:
        return TopicPartition(self.partition.topic, self.partition.number, offset)

    def _take(self, consumer: Consumer, most: int, most_bytes: int, wait_seconds: float) -> list[Message]:
        found: list[Message] = []
        size = 0
        while len(found) < most and size < most_bytes:
            wanted = min(_PIECE, most - len(found))
            taken = consumer.consume(wanted, 0.0 if found else wait_seconds)
            good = [message for message in taken if message.error() is None]
            if good:
                self._at = (good[-1].offset() or 0) + 1
            found += good
            size += sum(map(len, good))
            if len(good) < len(taken):
                self._hear(taken)
            if len(taken) < wanted:
                break
        return found

    def _hear(self, messages: list[Message]) -> None:
        """Record errors and the end of the partition."""
        for message in messages:
            if (error := message.error()) is None or error.code() in PASSING:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                self._at = max(self._at or 0, message.offset() or 0)
            else:
                self._problem = error

    def _judge(self) -> None:
        """Act on a recorded error, after the messages before it are read."""
        if (error := self._problem) is None:
            return
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise LostError(error.str())
        # librdkafka may have given up the partition: assign it again.
        self._at = self._problem = None
        if error.code() != self._said:
            self._said = error.code()
            logger.warning("%s: %s; tried again", self.partition.name, error.str())

    def silent_until(self, start: int) -> float | None:
        """Return a time (wall clock, s) up to which nothing came from `start` on for `idle_seconds`, or None.

        Never waits: it sends a request now, and a later call reads the answer.
        """
        found = self._heard(start)
        if self._asked is None and time.monotonic() >= self._next_question:
            self._asked = self.client.ask_end(self.partition.number)
            self._next_question = time.monotonic() + min(_LONGEST_PAUSE_SECONDS, self.idle_seconds / _ASK_AGAIN)
        return found

    def _heard(self, start: int) -> float | None:
        if self._asked is None:
            return None
        try:
            end = self._asked.answer()
        except BrokerAwayError as error:
            logger.debug("%s", error)
            self._asked = None
            self.silence.broken()
            return None
        if end is None:
            return None
        asked_at, self._asked = self._asked.at, None
        if self._assigned is not None:
            (self.consumer.failed if end > start else self.consumer.worked)(self._assigned)
        if end > start:
            self.silence.broken()
            return None
        return asked_at if self.silence.answered(asked_at) else None

    def close(self) -> None:
        """Close the consumer."""
        with self._lock:
            self.consumer.close()


_lock = Lock()
_consumers: dict[tuple[str, str], PartitionConsumer] = {}
_clients: dict[str, TopicClient] = {}


def consumer_of(config: PipelineConfig, partition: KafkaPartition) -> PartitionConsumer:
    """Return this process's consumer of a partition; closes consumers unused for a minute.

    Raises `KafkaSettingsError`.
    """
    ways = f"{config.log} {config.kafka.model_dump_json()}"
    key = (ways, partition.key)
    with _lock:
        before = time.monotonic() - _UNUSED_SECONDS
        for other in [one for one, found in _consumers.items() if one != key and found.used < before]:
            _consumers.pop(other).close()
        if ways not in _clients:
            _clients[ways] = TopicClient(Topic.parse(config.log), config.kafka)
        if key not in _consumers:
            consumer = ReplaceableClient(
                f"{config.log}: {partition.name}", partial(new_consumer, config), Consumer.close
            )
            _consumers[key] = PartitionConsumer(partition, config.idle_seconds, consumer, _clients[ways])
        return _consumers[key]
