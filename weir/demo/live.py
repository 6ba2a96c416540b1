"""Endless generated events with the current time, produced to a Kafka topic."""

import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from weir.contracts import UserError
from weir.demo.generator import GeneratorConfig, generate
from weir.pipelines.kafka_config import KafkaConfig, Topic
from weir.pipelines.sources.kafka.client import PATIENCE_SECONDS, ReplaceableClient, client_settings

__all__ = ["live_events", "produce"]

logger = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 0.1
_FLUSH_SECONDS: Final = 10.0
_QUIET_SECONDS: Final = 30.0
"""Seconds between two messages about unavailable brokers."""
_PURGED: Final = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
"""Delivery errors of a producer that was given up; another producer sends these events."""


def live_events(config: GeneratorConfig, clock: Callable[[], float] = time.time) -> Iterator[bytes]:
    """Yield the lines of a generated log again and again, each with the present time as its timestamp.

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


def _give_up(producer: Producer) -> None:
    """Drop a producer's unsent events, so that the producer ends."""
    producer.purge()
    producer.poll(0)


class _Sender:
    """Sends events through a Kafka producer; after replacing the producer, sends the unconfirmed events again."""

    def __init__(self, topic: Topic, kafka: KafkaConfig) -> None:
        self._topic, self._sent, self._arrived, self._said = topic, 0, 0, -_QUIET_SECONDS
        self._waiting: dict[int, bytes] = {}
        self._heard = time.monotonic()
        try:
            self._renewed = ReplaceableClient(
                f"{topic}: events", partial(Producer, client_settings(topic, kafka)), _give_up
            )
        except KafkaException as error:
            raise UserError(f"pipeline.kafka.options: {error.args[0].str()}") from error
        self._producer = self._renewed.client

    def send(self, events: list[bytes]) -> None:
        self._renew()
        for event in events:
            if not self._hand_over(self._sent, event):
                break
            self._sent += 1
        self._producer.poll(0)

    def close(self) -> int:
        end = time.monotonic() + _FLUSH_SECONDS
        while self._waiting and time.monotonic() < end:
            self._renew()
            self._producer.flush(1.0)
        return self._arrived

    def _renew(self) -> None:
        """Replace a producer that has had no answer for seconds, and resend the unconfirmed events."""
        if not self._waiting:
            self._heard = time.monotonic()
        elif time.monotonic() - self._heard > PATIENCE_SECONDS:
            self._renewed.failed(self._producer)
        if (now := self._renewed.client) is not self._producer:
            self._producer = now
            for number, event in list(self._waiting.items()):
                if not self._hand_over(number, event):
                    break

    def _hand_over(self, number: int, event: bytes) -> bool:
        try:
            self._producer.produce(self._topic.name, event, on_delivery=partial(self._done, number))
        except BufferError:
            self._say("no broker takes events: the newest are dropped")
            return False
        except KafkaException as error:
            # For example, a topic that the brokers create at its first event and do not know yet.
            self._say(f"an event was not taken: {error.args[0].str()}")
            return False
        self._waiting[number] = event
        return True

    def _done(self, number: int, error: KafkaError | None, _message: Any) -> None:
        if error is not None and error.code() in _PURGED:
            return
        if error is None:
            self._arrived, self._heard = self._arrived + 1, time.monotonic()
            self._renewed.worked(self._producer)
        else:
            self._say(f"an event was not taken: {error.str()}")
        self._waiting.pop(number, None)

    def _say(self, text: str) -> None:
        if time.monotonic() - self._said >= _QUIET_SECONDS:
            self._said = time.monotonic()
            logger.warning("%s: %s", self._topic, text)
