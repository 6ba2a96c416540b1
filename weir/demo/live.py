"""Endless generated events with the current time, produced to a Kafka topic."""

import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from weir.contracts import UserError
from weir.demo.generator import GeneratorConfig, generate
from weir.pipelines.kafka.address import Topic
from weir.pipelines.kafka.client import client_settings
from weir.pipelines.kafka.config import KafkaConfig

__all__ = ["live_events", "produce"]

logger = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 0.1
_FLUSH_SECONDS: Final = 10.0
_QUIET_SECONDS: Final = 30.0
"""Least seconds between two warnings."""


def live_events(config: GeneratorConfig, clock: Callable[[], float] = time.time) -> Iterator[bytes]:
    """Repeat the lines of a generated log forever, with the time at which each is taken as its timestamp.

    Event ids differ between repetitions. Malformed lines stay as they are.
    """
    lines = generate(config).lines.splitlines()
    return (_now(line, lap, clock()) for lap in itertools.count() for line in lines)


def _now(line: bytes, lap: int, seconds: float) -> bytes:
    try:
        event = json.loads(line)
        return json.dumps(
            event | {"timestamp": round(1000 * seconds), "event_id": f"{lap}-{event['event_id']}"}
        ).encode()
    except (ValueError, TypeError, KeyError):
        return line


def produce(topic: Topic, kafka: KafkaConfig, events: Iterator[bytes], rate: float, stop: threading.Event) -> int:
    """Send `rate` events per second until `stop` is set or `events` ends; return the number that brokers confirmed.

    While no broker answers, new events are dropped once the producer's queue is full. Raises `UserError` if the
    settings are not valid for a Kafka client.
    """
    sender = _Sender(topic, kafka)
    started, sent = time.monotonic(), 0
    while not stop.wait(_PERIOD_SECONDS):
        due = round(rate * (time.monotonic() - started)) - sent
        batch = list(itertools.islice(events, due))
        sender.send(batch)
        sent += len(batch)
        if len(batch) < due:
            break
    return sender.close()


class _Sender:
    def __init__(self, topic: Topic, kafka: KafkaConfig) -> None:
        self._topic, self._arrived, self._said = topic, 0, -_QUIET_SECONDS
        try:
            self._producer = Producer(client_settings(topic, kafka))
        except KafkaException as error:
            raise UserError(f"pipeline.kafka.options: {error.args[0].str()}") from error

    def send(self, events: list[bytes]) -> None:
        for event in events:
            try:
                self._producer.produce(self._topic.name, event, on_delivery=self._done)
            except BufferError:
                self._say("no broker takes events: the newest are dropped")
                break
            except KafkaException as error:
                # For example a topic that the brokers only create at its first event.
                self._say(f"an event was not taken: {error.args[0].str()}")
                break
        self._producer.poll(0)

    def close(self) -> int:
        self._producer.flush(_FLUSH_SECONDS)
        return self._arrived

    def _done(self, error: KafkaError | None, _message: Any) -> None:
        if error is None:
            self._arrived += 1
        else:
            self._say(f"an event was not taken: {error.str()}")

    def _say(self, text: str) -> None:
        if time.monotonic() - self._said >= _QUIET_SECONDS:
            self._said = time.monotonic()
            logger.warning("%s: %s", self._topic, text)
