"""Send a part of the log of a life to a topic: ``python -m tests.campaigns.life_topic URL PART``."""

import random
import sys
from typing import Final

from confluent_kafka import Producer

from tests.campaigns.life_log import lines_of
from weir.pipelines.kafka_config import Topic

PARTITIONS: Final = 2
"""Partitions that get messages; a topic may have more."""


def send(log: str, part: int) -> None:
    """Send each line of a part to one of the partitions, whoever its user is."""
    topic, rng = Topic.parse(log), random.Random(part)
    producer = Producer({"bootstrap.servers": ",".join(topic.servers), "acks": "all"})
    for line in lines_of(part):
        producer.produce(topic.name, line.strip().encode(), partition=rng.randrange(PARTITIONS))
    assert producer.flush(60) == 0


if __name__ == "__main__":
    send(sys.argv[1], int(sys.argv[2]))
