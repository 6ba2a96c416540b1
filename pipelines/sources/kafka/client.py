"""Kafka clients of a topic: partitions and offsets, and consumers with the options that exact counting needs."""

import logging
import os
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import RLock
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined] # exported without saying so

from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka_config import (
    KEY_PASSWORD,
    PASSWORD,
    BrokerAwayError,
    KafkaConfig,
    KafkaSettingsError,
    Topic,
    TopicMissingError,
    password_of,
)

__all__ = [
    "PATIENCE_SECONDS",
    "Connection",
    "KafkaPartition",
    "PendingRequest",
    "ReplaceableClient",
    "TopicClient",
    "client_settings",
    "connected",
    "new_consumer",
]


logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 5.0
_LONGEST_SECONDS: Final = 15.0

T = TypeVar("T")


class ReplaceableClient(Generic[T]):
    """Holds a Kafka client from `make`, and replaces the client once it has failed for five seconds. Thread-safe.

    A librdkafka client (2.16) may lose its brokers for good though a new client reaches them: if the last broker
    connection closes while an answer without brokers arrives, its broker search is cancelled for good. `drop` is called
    with each replaced client. While no client works, each new client gets twice the time of the previous one, at most
    fifteen seconds.
    """

    def __init__(self, name: str, make: Callable[[], T], drop: Callable[[T], None]) -> None:
        self._name, self._make, self._drop = name, make, drop
        self._lock = RLock()
        self._failing_since: float | None = None
        self.unanswered_since: float | None = None
        """Start of the present failure, over replaced clients (wall clock, s); None while a client works."""
        self._patience = PATIENCE_SECONDS
        self._client = make()

    @property
    def client(self) -> T:
        """The current client; replacing it may raise the errors of `make`."""
        with self._lock:
            if self._failing_since is not None and time.monotonic() - self._failing_since >= self._patience:
                self._replace(time.monotonic() - self._failing_since)
            return self._client

    def _replace(self, seconds: float) -> None:
        level = logging.INFO if self._patience == PATIENCE_SECONDS else logging.DEBUG
        logger.log(level, "%s: a client has failed for %.0f s; a new one takes its place", self._name, seconds)
        before, self._client = self._client, self._make()
        self._failing_since, self._patience = None, min(2 * self._patience, _LONGEST_SECONDS)
        self._drop(before)

    def failed(self, client: T) -> None:
        """Record that a client has failed; ignored for a replaced client."""
        with self._lock:
            if client is self._client and self._failing_since is None:
                self._failing_since = time.monotonic()
                self.unanswered_since = self.unanswered_since or time.time()

    def worked(self, client: T) -> None:
        """Record that a client has worked; ignored for a replaced client."""
        with self._lock:
            if client is self._client:
                self._failing_since, self._patience = None, PATIENCE_SECONDS
                self.unanswered_since = None

    def close(self) -> None:
        """Drop the client."""
        self._drop(self._client)


_NO_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
_NO_SUCH_TOPIC: Final = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_NO_OFFSET: Final = -1
_SLACK_SECONDS: Final = 5.0
"""Extra wait after a request's timeout; a request to a replaced client may never end."""


@dataclass(frozen=True)
class PendingRequest(Generic[T]):
    """A pending request to the brokers; `at` is when it was sent (wall clock, seconds)."""

    _future: "Future[Any]"
    _read: Callable[[Any], T]
    _worked: Callable[[], None]
    _away: Callable[[str], BrokerAwayError]
    _limit_seconds: float
    at: float = field(default_factory=time.time)

    def answer(self, wait_seconds: float = 0.0) -> T | None:
        """Return the answer, None while it is pending; raises `BrokerAwayError` if the request has failed."""
        try:
            found = self._read(self._future.result(wait_seconds))
        except TimeoutError:
            if time.time() - self.at > self._limit_seconds:
                raise self._away(f"no answer within {self._limit_seconds:g} s") from None
            return None
        except KafkaException as error:
            raise self._away(error.args[0].str()) from error
        self._worked()
        return found


@dataclass(frozen=True)
class KafkaPartition:
    """A listed partition; positions are offsets, in [`first`, `size`), without open transactions.

    `key` contains the ids of cluster and topic, so the partitions of a re-created topic have other keys. `arrival_ms`
    and `fingerprint` are for files only: every message has its own time.
    """

    key: str
    topic: str
    number: int
    first: int
    size: int
    topic_id: str = ""
    arrival_ms: int | None = None
    fingerprint: str = ""

    @property
    def recorded_size(self) -> int:
        """The end offset, as commits record it."""
        return self.size

    @property
    def name(self) -> str:
        """The partition's name for people."""
        return f"partition {self.number} of topic {self.topic}"

    @property
    def topic_key(self) -> str:
        """The key prefix of all topics of this name in the cluster, re-created ones included."""
        return self.key.rsplit("/", 2 if self.topic_id else 1)[0] + "/"


def client_settings(topic: Topic, config: KafkaConfig) -> dict[str, Any]:
    """Return the librdkafka options of every client; raises `KafkaSettingsError`."""
    found: dict[str, Any] = config.options | {
        "bootstrap.servers": ",".join(topic.servers),
        "security.protocol": config.security_protocol,
        # librdkafka would repeat our messages several times a second.
        "log_level": 0,
    }
    if config.ca_file is not None:
        found["ssl.ca.location"] = config.ca_file
    if config.certificate_file is not None:
        found |= {"ssl.certificate.location": config.certificate_file, "ssl.key.location": config.key_file}
        if KEY_PASSWORD in os.environ:
            found["ssl.key.password"] = os.environ[KEY_PASSWORD]
    if config.user is not None:
        found |= {"sasl.mechanism": config.sasl_mechanism, "sasl.username": config.user}
        found["sasl.password"] = password_of(
            f"user {config.user}", config.password_file, "pipeline.kafka.password_file", PASSWORD
        )
    return found


_unused: "SimpleQueue[AdminClient]" = SimpleQueue()
"""Replaced clients, and clients of garbage-collected `TopicClient`s, waiting for destruction.

librdkafka aborts the process if its own thread destroys a client. That thread runs Python callbacks, so the garbage
collector may run there. So the thread that makes the next client destroys these.
"""


def _destroy_unused() -> None:
    try:
        while True:
            _unused.get_nowait()
    except Empty:
        return


def _new_admin(topic: Topic, settings: dict[str, Any]) -> AdminClient:
    _destroy_unused()
    try:
        return AdminClient(settings)
    except KafkaException as error:
        raise KafkaSettingsError(f"{topic}: {error.args[0].str()}") from error


class TopicClient:
    """Admin client of one topic: its partitions, offsets and id. Raises `KafkaSettingsError` for invalid settings.

    A `TopicClient` may be kept forever: a connection that fails for seconds is replaced.
    """

    def __init__(self, topic: Topic, config: KafkaConfig) -> None:
        self._topic, self._config = topic, config
        # The newest connection error: a timeout alone does not tell why a broker is unreachable.
        self._reasons = reasons = deque[str](maxlen=1)
        settings = client_settings(topic, config) | {
            "error_cb": lambda error: reasons.append(str(error.str())),
            # Otherwise an admin client creates the topic that it asks about.
            "allow.auto.create.topics": False,
        }
        self._renewed = ReplaceableClient(f"{topic}: questions", partial(_new_admin, topic, settings), _unused.put)
        weakref.finalize(self, self._renewed.close)

    @property
    def unanswered_since(self) -> float | None:
        """Time of the first unanswered request (wall clock, s); None while brokers answer."""
        return self._renewed.unanswered_since

    def partitions(self) -> list[KafkaPartition]:
        """Return the partitions in order of number; raises `BrokerAwayError` or `TopicMissingError`."""
        found = self._describe()
        topic_id = _spelled(found)
        identity = [quote(self._cluster(), safe=""), self._topic.name, *([topic_id] if topic_id else [])]
        numbers = sorted(partition.id for partition in found.partitions)
        first, size = self.offsets(numbers, OffsetSpec.earliest()), self.offsets(numbers, OffsetSpec.latest())
        return [
            KafkaPartition(
                f"kafka/{'/'.join(identity)}/{number}", self._topic.name, number, first[number], size[number], topic_id
            )
            for number in numbers
        ]

    def topic_id(self) -> str:
        """Return the topic id, "" if brokers have none; raises the errors of `partitions`."""
        return _spelled(self._describe())

    def ask_topic_id(self) -> "PendingRequest[str]":
        """Request the topic id without waiting."""
        admin = self._renewed.client
        return self._asked(admin, self._describing(admin), _spelled)

    def ask_end(self, number: int) -> "PendingRequest[int]":
        """Request the end offset of a partition, open transactions included, without waiting."""
        admin = self._renewed.client
        wanted = {TopicPartition(self._topic.name, number): OffsetSpec.latest()}
        timeout = self._config.timeout_seconds
        ways: Any = {"isolation_level": IsolationLevel.READ_UNCOMMITTED, "request_timeout": timeout}
        [future] = admin.list_offsets(wanted, **ways).values()
        return self._asked(admin, future, partial(self._offset, admin))

    def _asked(self, admin: AdminClient, future: "Future[Any]", read: Callable[[Any], T]) -> "PendingRequest[T]":
        limit = self._config.timeout_seconds + _SLACK_SECONDS
        return PendingRequest(future, read, partial(self._renewed.worked, admin), partial(self._away, admin), limit)

    def begin(self, partitions: Iterable[KafkaPartition]) -> dict[int, int]:
        """Return partition number -> first offset to read, as `kafka.start` says; raises `BrokerAwayError`."""
        partitions, start = list(partitions), self._config.start
        if start == "earliest":
            return {one.number: one.first for one in partitions}
        if start == "latest":
            return {one.number: one.size for one in partitions}
        if start == "committed":
            found = self._committed()
            # Without a committed offset the group has read nothing.
            return {one.number: found.get(one.number, one.first) for one in partitions}
        spec = OffsetSpec.for_timestamp(round(1000 * start.timestamp()))
        found = self.offsets([one.number for one in partitions], spec)
        # If no message is that new, start at the end.
        return {one.number: one.size if found[one.number] == _NO_OFFSET else found[one.number] for one in partitions}

    def _committed(self) -> dict[int, int]:
        """Return partition number -> offset that the consumer group has committed."""
        group = ConsumerGroupTopicPartitions(self._config.group or "")
        timeout = self._config.timeout_seconds
        with self._asking() as admin:
            [future] = admin.list_consumer_group_offsets([group], request_timeout=timeout).values()
            found = future.result(timeout).topic_partitions
        return {one.partition: one.offset for one in found if one.topic == self._topic.name and one.offset >= 0}

    def offsets(self, numbers: Iterable[int], spec: OffsetSpec) -> dict[int, int]:
        """Return partition number -> offset at `spec`, before open transactions; raises `BrokerAwayError`."""
        wanted = {TopicPartition(self._topic.name, number): spec for number in numbers}
        if not wanted:
            return {}
        timeout = self._config.timeout_seconds
        with self._asking() as admin:
            asked: Mapping[TopicPartition, Future[Any]] = admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout
            )
            return {one.partition: self._offset(admin, future.result(timeout)) for one, future in asked.items()}

    def _offset(self, admin: AdminClient, found: Any) -> int:
        offset = int(found.offset)
        if offset < _NO_OFFSET:
            # The client's way to report that no broker has answered.
            raise self._away(admin, "no answer about the offsets of a partition")
        return offset

    def _cluster(self) -> str:
        """Return the cluster id.

        Not by `describe_cluster`: librdkafka (2.16) aborts the process if the answer lists no broker, as that of a
        single broker does for seconds after an outage.
        """
        with self._asking() as admin:
            known = admin.list_topics(self._topic.name, timeout=self._config.timeout_seconds)
        return known.cluster_id or "unnamed"

    def _describe(self) -> Any:
        with self._asking() as admin:
            return self._describing(admin).result(self._config.timeout_seconds)

    def _describing(self, admin: AdminClient) -> "Future[Any]":
        [future] = admin.describe_topics(
            TopicCollection([self._topic.name]), request_timeout=self._config.timeout_seconds
        ).values()
        return future

    @contextmanager
    def _asking(self) -> Iterator[AdminClient]:
        admin = self._renewed.client
        try:
            yield admin
        except KafkaException as error:
            problem: KafkaError = error.args[0]
            if problem.code() in _NO_SUCH_TOPIC:
                self._renewed.worked(admin)
                raise TopicMissingError(f"{self._topic}: the brokers know no topic {self._topic.name}") from error
            raise self._away(admin, problem.str()) from error
        except TimeoutError as error:
            raise self._away(admin, f"no answer within {self._config.timeout_seconds:g} s") from error
        self._renewed.worked(admin)

    def _away(self, admin: AdminClient, problem: str) -> BrokerAwayError:
        self._renewed.failed(admin)
        admin.poll(0)
        reason = self._reasons.pop() if self._reasons else ""
        return BrokerAwayError(f"{self._topic}: {problem}{f' ({reason})' if reason else ''}")


def _spelled(found: Any) -> str:
    # librdkafka encodes it with + and /, Kafka with - and _.
    spelled = str(found.topic_id).rstrip("=").replace("+", "-").replace("/", "_")
    return "" if spelled == _NO_TOPIC_ID else spelled


def new_consumer(config: PipelineConfig) -> Consumer:
    """Return a consumer of committed messages without group membership; raises `KafkaSettingsError`."""
    settings: dict[str, Any] = {
        # With the default of a second, consuming pauses whenever the queue was full.
        "fetch.queue.backoff.ms": 5,
        "fetch.wait.max.ms": 100,
        "queued.max.messages.kbytes": 16_384,
        **client_settings(Topic.parse(config.log), config.kafka),
        # Required by the client; positions are in the commits, and the consumer does not join the group.
        "group.id": "weir",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
    }
    try:
        return Consumer(settings)
    except KafkaException as error:
        raise KafkaSettingsError(f"pipeline.kafka.options: {error.args[0].str()}") from error


@dataclass
class Connection:
    """A consumer and a client that checks the consumer's topic; a connection that `has_failed` is not used again."""

    consumer: Consumer
    topic: TopicClient
    has_failed: bool = False

    @classmethod
    def open(cls, config: PipelineConfig) -> "Connection":
        """Return a new connection; raises `KafkaSettingsError`."""
        return cls(new_consumer(config), TopicClient(Topic.parse(config.log), config.kafka))


_idle: dict[str, list[Connection]] = defaultdict(list)
"""Idle connections of this process: opening one takes longer than reading the messages of a second."""


@contextmanager
def connected(config: PipelineConfig) -> Iterator[Connection]:
    """Yield an idle or new connection of this process, which becomes idle again after the block."""
    free = _idle[f"{config.log} {config.kafka.model_dump_json()}"]
    connection = free.pop() if free else Connection.open(config)
    try:
        yield connection
    except BaseException:
        connection.consumer.close()
        raise
    if connection.has_failed:
        connection.consumer.close()
        return
    connection.consumer.unassign()
    free.append(connection)
