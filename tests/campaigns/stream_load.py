"""A producer that writes events to a topic until it is told to stop, whatever happens to the broker.

``python -m tests.campaigns.stream_load SERVERS TOPIC PER_SECOND``

Partition 3 stays idle. One event in 100 comes twice, one is malformed, one is late, one has no value.
"""

import random
import signal
import sys
import time
from collections.abc import Iterator
from threading import Event
from types import FrameType

from confluent_kafka import Producer

USERS, ITEMS = 20_000, 5_000
LATE_SECONDS = (20.0, 60.0)


def lines(random: random.Random, now: float) -> Iterator[bytes | None]:
    """Yield the messages of one event."""
    seconds = now - random.uniform(*LATE_SECONDS) if random.random() < 0.01 else now
    user, item = int(USERS * random.random() ** 3), int(ITEMS * random.random() ** 3)
    # Half of the events have no id: then two equal rows are two events.
    named = f',"event_id":"e{random.getrandbits(48):x}"' if random.random() < 0.5 else ""
    kind = "click" if random.random() < 0.8 else random.choice(["skip", "view"])
    line = f'{{"user_id":"u{user}","item_id":"i{item}","timestamp":{int(1000 * seconds)},"event_type":"{kind}"{named}}}'
    chance = random.random()
    if chance < 0.01:
        yield line[: len(line) // 2].encode()
    elif chance < 0.02:
        yield None
    else:
        yield line.encode()
        if named and chance < 0.04:
            yield line.encode()


def main(servers: str, topic: str, per_second: int) -> None:
    stop, rng = Event(), random.Random(1)

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, end)
    # It never gives up a message, and the broker never takes one twice.
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "message.timeout.ms": 0,
            "linger.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            "log_level": 0,
        }
    )
    started, sent = time.monotonic(), 0
    while not stop.is_set():
        due = int(per_second * (time.monotonic() - started))
        # After an outage it does not send all at once what was due meanwhile: it is late by then.
        for _ in range(min(due - sent, per_second)):
            now = time.time()
            for line in lines(rng, now):
                while True:
                    try:
                        producer.produce(topic, line, partition=rng.randrange(3))
                        break
                    except BufferError:
                        producer.poll(0.1)
            sent += 1
        producer.poll(0.02)
    if producer.flush(300):
        sys.exit("messages are left that the broker has not taken")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
