"""Connections to the brokers of a topic: consumers with the options on which exactness depends."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException

from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka.address import Topic
from weir.pipelines.kafka.client import TopicClient, client_settings
from weir.pipelines.kafka.errors import KafkaSettingsError

__all__ = ["Connection", "connected", "new_consumer"]


def new_consumer(config: PipelineConfig) -> Consumer:
    """Return a consumer of committed messages that is a member of no group; raises `KafkaSettingsError`."""
    settings: dict[str, Any] = {
        # With its default of a second, consuming stops whenever the queue was full.
        "fetch.queue.backoff.ms": 5,
        "fetch.wait.max.ms": 100,
        "queued.max.messages.kbytes": 16_384,
        **client_settings(Topic.parse(config.log), config.kafka),
        # Required, but positions are in the commits: nobody joins this group.
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
    """A consumer, and a client that knows which topic it reads; not lent again once it `has_failed`."""

    consumer: Consumer
    topic: TopicClient
    has_failed: bool = False

    @classmethod
    def open(cls, config: PipelineConfig) -> "Connection":
        """Return a new one; raises `KafkaSettingsError`."""
        return cls(new_consumer(config), TopicClient(Topic.parse(config.log), config.kafka))


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
    if connection.has_failed:
        connection.consumer.close()
        return
    connection.consumer.unassign()
    free.append(connection)
