"""The load of the stream campaigns, and its oracle: a producer that goes on whatever happens to the broker.

``python -m tests.campaigns.stream_truth SERVERS TOPIC PER_SECOND``

Partition 3 stays idle. One event in 100 comes twice, one is malformed, one is late, one has no value.
"""

import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Event
from types import FrameType

import msgspec
import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.pipelines import support
from weir.contracts import HistoryFiles, Label, LogState, Store, UserHistories, UserKeys, WindowLog, hash_ids
from weir.contracts.base import columns
from weir.pipelines.config import PipelineConfig
from weir.pipelines.histories.merging import rebuilt
from weir.pipelines.runs.run_registry import forget, new_run
from weir.pipelines.transforms.count import empty_sketch

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


LABELS = {"click": 1, "skip": -1, "view": 0}
EVENT = [("window", "i8"), ("user", "i8"), ("item", "i8"), ("ms", "i8"), ("label", "i8")]


class Line(msgspec.Struct):
    user_id: str
    item_id: str
    timestamp: int
    event_type: str
    event_id: str | None = None


@dataclass
class Truth:
    """What a topic holds: the distinct events as `EVENT` rows, refused offsets, and counts by partition."""

    ends: dict[int, int] = field(default_factory=dict)
    events: np.ndarray = field(default_factory=lambda: np.empty(0, EVENT))
    refused: dict[int, list[int]] = field(default_factory=dict)
    without_value: int = 0
    duplicates: int = 0

    @classmethod
    def of(cls, servers: str, topic: str, ends: dict[int, int], window_ms: int) -> "Truth":
        found, lines = cls(ends), list[Line]()
        decode = msgspec.json.Decoder(Line).decode
        for number, end in ends.items():
            found.refused[number] = []
            for offset, value in _messages(servers, topic, number, end):
                if value is None:
                    found.without_value += 1
                    continue
                try:
                    lines.append(decode(value))
                except msgspec.DecodeError:
                    found.refused[number].append(offset)
        found.events = found._distinct(lines, window_ms)
        return found

    def _distinct(self, lines: list[Line], window_ms: int) -> np.ndarray:
        rows = np.empty(len(lines), EVENT)
        rows["user"] = hash_ids(pa.array([one.user_id for one in lines]), "")
        rows["item"] = hash_ids(pa.array([one.item_id for one in lines]), "")
        rows["ms"] = [one.timestamp for one in lines]
        rows["window"] = rows["ms"] // window_ms * window_ms
        rows["label"] = [LABELS[one.event_type] for one in lines]
        known, first = set(), np.ones(len(lines), np.bool_)
        for place, (one, window) in enumerate(zip(lines, rows["window"].tolist(), strict=True)):
            if one.event_id is not None:
                first[place] = (one.user_id, window, one.event_id) not in known
                known.add((one.user_id, window, one.event_id))
        self.duplicates = int((~first).sum())
        return rows[first]


def _messages(servers: str, topic: str, number: int, end: int) -> Iterator[tuple[int, bytes | None]]:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "truth", "enable.auto.commit": False, "fetch.queue.backoff.ms": 5}
    )
    consumer.assign([TopicPartition(topic, number, 0)])
    at = 0
    while at < end:
        for message in consumer.consume(10_000, 1.0):
            assert message.error() is None, message.error()
            at = message.offset() + 1
            yield message.offset(), message.value()
    consumer.close()


def check(store: Store, truth: Truth, config: PipelineConfig) -> None:
    """Each offset is accounted for once; events, counts, sketches and histories are those of a plain replay."""
    state = LogState.open(store)
    spans = {int(key.rpartition("/")[2]): span for key, span in state.sources.items()}
    assert {number: (span.resume, span.stop) for number, span in spans.items()} == {
        number: (end, end) for number, end in truth.ends.items()
    }
    assert sum(span.skipped for span in spans.values()) == truth.without_value
    counts, ignored = state.counts, int((truth.events["label"] == int(Label.IGNORE)).sum())
    # Ignored rows are not stored, so that one that comes again in a later pane is ignored again.
    assert counts.duplicates + counts.ignored == truth.duplicates + ignored
    assert counts.duplicates <= truth.duplicates
    accounted = counts.events + counts.ignored + counts.duplicates + state.dead + truth.without_value
    assert accounted == sum(truth.ends.values())
    letters = {number: list[int]() for number in truth.ends}
    for letter in support.dead_letters(store):
        letters[int(letter.partition.rpartition("/")[2])].append(letter.position)
    assert {number: sorted(found) for number, found in letters.items()} == truth.refused
    events = truth.events[truth.events["label"] != int(Label.IGNORE)]
    stored = _stored(store, config)
    assert len(stored) == len(events) == counts.events
    assert (np.sort(stored, order=[name for name, _ in EVENT]) == np.sort(events, order=[n for n, _ in EVENT])).all()
    check_sketches(store, config)
    check_histories(store, config, state)


def _stored(store: Store, config: PipelineConfig) -> np.ndarray:
    log, parts = WindowLog(store), [np.empty(0, EVENT)]
    for manifest in support.committed(store):
        rows = log.all_examples(manifest, [columns.USER_KEY, columns.ITEM_KEY, columns.TIMESTAMP, columns.LABEL])
        part = np.empty(len(rows), EVENT)
        part["window"] = manifest.start_ms
        for name, column in (("user", columns.USER_KEY), ("item", columns.ITEM_KEY), ("ms", columns.TIMESTAMP)):
            part[name] = rows[column].to_numpy()
        part["label"] = rows[columns.LABEL].to_numpy()
        assert (part["ms"] // config.window_ms * config.window_ms == manifest.start_ms).all()
        parts.append(part)
    return np.concatenate(parts)


def check_sketches(store: Store, config: PipelineConfig) -> None:
    """The sketches of each pane have the bits of a count of its examples, shard by shard."""
    log = WindowLog(store)
    for manifest in support.committed(store):
        for column, stored in ((columns.ITEM_KEY, log.sketch(manifest)), (columns.USER_KEY, log.user_sketch(manifest))):
            sketch = empty_sketch(config.sketch)
            for shard in log.shards(manifest):
                rows = log.examples(manifest, shard, [column, columns.LABEL])
                keys = rows[column].to_numpy()[rows[columns.LABEL].to_numpy() == int(Label.POSITIVE)]
                grouped = pa.table({column: keys}).group_by(column, use_threads=False).aggregate([(column, "count")])
                sketch.update(grouped[column].to_numpy(), grouped[f"{column}_count"].to_numpy().astype(float))
            assert sketch.to_bytes() == stored


def check_histories(store: Store, config: PipelineConfig, state: LogState) -> None:
    """The files of users say what a replay of the committed windows says, of every user."""
    users, run = UserKeys(np.unique(_stored(store, config)["user"])), new_run()
    files = rebuilt(store, config, state, range(config.user_shards), run)
    stored = _told(store, config, state.histories, users)
    replayed = _told(store, config, HistoryFiles(shards={file.shard: (file,) for file in files}), users)
    for one, other in zip(stored, replayed, strict=True):
        assert (one == other).all()
    forget(store, run)


def _told(store: Store, config: PipelineConfig, files: HistoryFiles, users: UserKeys) -> list[np.ndarray]:
    histories = UserHistories(store, config.user_shards)
    histories.take_in(files)
    known = histories.find(users)
    return [*known.records(), *known.seen(np.arange(len(users)))]
