"""Asking the brokers about a topic that is in an unusual state."""

import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from tests.integration.kafka_broker import Broker, kafka
from tests.pipelines.sources.kafka.support import new_topic
from weir.pipelines.kafka_config import BrokerAwayError, KafkaConfig, Topic, TopicMissingError
from weir.pipelines.sources.kafka.client import TopicClient

# The controller takes the broker for dead between two heartbeats, as it does for a moment after the broker hung.
FENCED = """
broker.heartbeat.interval.ms=2000
broker.session.timeout.ms=1200
"""


def client(broker: Broker, topic: str) -> TopicClient:
    config = KafkaConfig(timeout_seconds=5, options={"topic.metadata.refresh.interval.ms": 200})
    return TopicClient(Topic.parse(broker.url(topic)), config)


def test_answers_that_list_no_broker_are_survived(tmp_path: Path) -> None:
    with kafka(tmp_path, FENCED) as broker:
        for _ in range(300):
            with suppress(KafkaException):
                broker.create("clicks", 2)
                break
        asked, seen, end = client(broker, "clicks"), Counter[str](), time.monotonic() + 60
        while len(seen) < 3 and time.monotonic() < end:
            try:
                seen.update(one.key for one in asked.partitions())
            except BrokerAwayError as error:
                seen.update([str(error)])
    keys = sorted(key for key in seen if key.startswith("kafka/"))
    assert [key.rpartition("/")[2] for key in keys] == ["0", "1"]
    assert len(seen) > 2, "the broker was never fenced"


def test_a_topic_that_is_gone_is_not_created_by_asking(broker: Broker) -> None:
    topic = new_topic(broker)
    asked = client(broker, topic)
    assert len(asked.partitions()) == 1
    broker.delete(topic)
    # By then the client has looked again by itself.
    time.sleep(2)
    with pytest.raises(TopicMissingError, match=topic):
        asked.partitions()
    assert topic not in broker.admin().list_topics(timeout=30).topics
