"""Generated events that happen now, and how they reach a topic."""

import itertools
import json
import threading
from collections import Counter

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.integration.kafka_broker import Broker
from weir.contracts import UserError
from weir.demo.generator import GeneratorConfig, generate
from weir.demo.live import live_events, produce
from weir.pipelines.kafka_config import KafkaConfig, Topic

CONFIG = GeneratorConfig(users=20, items=40, events=200, days=3, outages=0, late=0, malformed=0.05)


def test_two_laps_are_the_generated_log_twice_with_other_times_and_ids() -> None:
    made = generate(CONFIG)
    clock = itertools.count(1_800_000_000)
    lines = list(itertools.islice(live_events(CONFIG, lambda: next(clock)), 2 * made.truth.lines))
    ids: list[str] = []
    for place, (line, origin) in enumerate(zip(lines, 2 * made.lines.splitlines(), strict=True)):
        try:
            event = json.loads(origin)
            known = isinstance(event, dict) and "event_id" in event
        except ValueError:
            known = False
        if not known:
            assert line == origin
            continue
        lap = place // made.truth.lines
        assert json.loads(line) == event | {
            "event_id": f"{lap}-{event['event_id']}",
            "timestamp": 1000 * (1_800_000_000 + place),
        }
        ids.append(json.loads(line)["event_id"])
    twice = Counter(Counter(ids).values())
    assert twice == {1: 2 * (made.truth.events - made.truth.duplicates), 2: 2 * made.truth.duplicates}


def test_a_broker_gets_what_is_sent(broker: Broker) -> None:
    broker.create("live", partitions=1)
    lines = [f"line {number}".encode() for number in range(50)]
    sent = produce(Topic.parse(broker.url("live")), KafkaConfig(), iter(lines), 500, threading.Event())
    assert sent == len(lines)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "any", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("live", 0, 0)])
    found = consumer.consume(len(lines), timeout=30)
    consumer.close()
    assert [message.value() for message in found] == lines


def test_settings_that_make_no_client_are_named() -> None:
    topic, config = Topic.parse("kafka://127.0.0.1:9/clicks"), KafkaConfig(options={"no.such.option": 1})
    with pytest.raises(UserError, match=r"no\.such\.option"):
        produce(topic, config, iter([]), 1, threading.Event())
