"""Consumers of this process, one for each partition.

Consumers are shared by the process: Beam keeps readers per instance of its transform, and often hands the next elements
to another instance; opening a consumer takes longer than reading the messages of a second.
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


logger = logging.getLogger(__name__)

UNASKED_SECONDS: Final = 5.0
"""Longest gap between two requests about a partition that does not end its silence, if `idle_seconds` is shorter."""

_UNUSED_SECONDS: Final = 60.0
_MESSAGES_PER_CALL: Final = 2048
"""Messages consumed per call; their bytes are counted between calls."""
_WAIT_SECONDS: Final = 0.05
_FIRST_WAIT_SECONDS: Final = 0.2
"""Wait after a change of position, when nothing has been fetched yet."""
_ASK_AGAIN: Final = 4
"""Requests per `idle_seconds` about a partition without messages."""
_LONGEST_PAUSE_SECONDS: Final = 2.0


@dataclass
class Silence:
    """Measures how long the brokers have reported that a partition has no unread messages.

    A time is that of the request (wall clock, s), so a late answer proves nothing about the time since. A gap between
    two requests longer than `idle_seconds`, or `UNASKED_SECONDS` if that is longer, ends the silence: after an outage,
    producers send their backlog.
    """

    idle_seconds: float
    _since: float | None = None
    _until: float | None = None

    @property
    def _patience(self) -> float:
        return max(self.idle_seconds, UNASKED_SECONDS)

    def broken(self) -> None:
        """End the silence: there was something to read, or no answer."""
        self._since = self._until = None

    def answered(self, asked_at: float) -> bool:
        """Record that the partition was empty at `asked_at` (s); return whether it was so for `idle_seconds`."""
        if self._since is None or self._until is None or not 0 <= asked_at - self._until <= self._patience:
            self._since = asked_at
        self._until = asked_at
        return asked_at - self._since >= self.idle_seconds


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
    """Reads one partition from any offset on; `client` sends requests about the topic.

    Its Kafka `consumer` is replaced if it brings no message for seconds although the brokers report more.
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
    _logged: int | None = field(default=None, init=False)
    _asked: PendingRequest[int] | None = field(default=None, init=False)
    _next_question: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.silence = Silence(self.idle_seconds)

    def fetch(self, start: int, most: int, most_bytes: int) -> Fetched | None:
        """Return the next messages from offset `start` on, about `most` or `most_bytes`; None if none has come.

        Waits .2 s at most. Raises `LostError` if the broker does not have the offset any more.
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
                self._act_on_error()
                return None
            self.consumer.worked(consumer)
            self.silence.broken()
            _, end = consumer.get_watermark_offsets(self._place(start), cached=True) or (0, 0)
            return Fetched(messages, stop, max(stop, end))

    def _place(self, offset: int) -> TopicPartition:
        return TopicPartition(self.partition.topic, self.partition.number, offset)

    def _take(self, consumer: Consumer, most: int, most_bytes: int, wait_seconds: float) -> list[Message]:
        """Consume about `most` messages or `most_bytes`, and move the position after them; waits for the first."""
        messages: list[Message] = []
        size = 0
        while len(messages) < most and size < most_bytes:
            limit = min(_MESSAGES_PER_CALL, most - len(messages))
            taken = consumer.consume(limit, 0.0 if messages else wait_seconds)
            good = [message for message in taken if message.error() is None]
            if good:
                self._at = (good[-1].offset() or 0) + 1
            messages += good
            size += sum(map(len, good))
            if len(good) < len(taken):
                self._note_errors(taken)
            if len(taken) < limit:
                break
        return messages

    def _note_errors(self, messages: list[Message]) -> None:
        """Record the errors among consumed messages, and the end of the partition."""
        for message in messages:
            if (error := message.error()) is None or error.code() in PASSING:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                self._at = max(self._at or 0, message.offset() or 0)
            else:
                self._problem = error

    def _act_on_error(self) -> None:
        """Raise `LostError` or assign the partition again, if an error was recorded."""
        if (error := self._problem) is None:
            return
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise LostError(error.str())
        # librdkafka may have given up the partition: assign it again.
        self._at = self._problem = None
        if error.code() != self._logged:
            self._logged = error.code()
            logger.warning("%s: %s; tried again", self.partition.name, error.str())

    def silent_until(self, start: int) -> float | None:
        """Return the time (wall clock, s) up to which no message has come for `idle_seconds`, or None.

        `start` is the next offset to read. Never waits: a call sends a request, and a later call reads the answer.
        """
        until = self._answered_silent(start)
        if self._asked is None and time.monotonic() >= self._next_question:
            self._asked = self.client.ask_end(self.partition.number)
            self._next_question = time.monotonic() + min(_LONGEST_PAUSE_SECONDS, self.idle_seconds / _ASK_AGAIN)
        return until

    def _answered_silent(self, start: int) -> float | None:
        """Read the answer of the pending request; return its time if the silence has lasted for `idle_seconds`."""
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
    connection = f"{config.log} {config.kafka.model_dump_json()}"
    key = (connection, partition.key)
    with _lock:
        before = time.monotonic() - _UNUSED_SECONDS
        for unused in [other for other, reader in _consumers.items() if other != key and reader.used < before]:
            _consumers.pop(unused).close()
        if connection not in _clients:
            _clients[connection] = TopicClient(Topic.parse(config.log), config.kafka)
        if key not in _consumers:
            consumer = ReplaceableClient(
                f"{config.log}: {partition.name}", partial(new_consumer, config), Consumer.close
            )
            _consumers[key] = PartitionConsumer(partition, config.idle_seconds, consumer, _clients[connection])
        return _consumers[key]
