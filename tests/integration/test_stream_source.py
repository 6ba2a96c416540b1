"""Partitions of a real broker as sources without an end, read as Beam reads them but without an engine."""

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from apache_beam.utils.timestamp import MAX_TIMESTAMP
from prometheus_client import CollectorRegistry

from tests.integration import moved_broker
from tests.integration.kafka_broker import NAME, Broker, ends, kafka
from tests.integration.named_hosts import named_hosts
from tests.integration.test_kafka import COMPACTED, wait_until
from tests.pipelines.sources.kafka.schema_registry import schema_registry
from tests.pipelines.sources.kafka.support import config, new_topic, now, values
from tests.pipelines.support import ORIGIN
from weir.contracts import CommitLog, EventClock, LogState, SourceSpan, Store
from weir.contracts.base import columns
from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka_config import StoppedPartitionError
from weir.pipelines.metrics import TopicMetrics
from weir.pipelines.sources.kafka.source import TopicSource
from weir.pipelines.sources.plan import InHand
from weir.pipelines.stream.config import StreamConfig
from weir.pipelines.stream.consumers import consumer_of
from weir.pipelines.stream.flink_job import commit_starts, sources
from weir.pipelines.stream.reader import Batch, Mark, PartitionReader, PartitionSource

SMALL = {"idle_seconds": 0.4, "allowed_lateness_seconds": 1}


def begin(folder: Path, settings: PipelineConfig, most: int = 7) -> list[PartitionSource]:
    """The sources of all partitions, after their starts are committed."""
    store = Store(str(folder / "store"))
    source = TopicSource.open(settings, TopicMetrics(CollectorRegistry()))
    state = LogState.open(store)
    partitions = source.discover()
    commit_starts(store, source, state, partitions)
    found = source.identify(partitions, state, InHand())
    return sources(found, state, settings, StreamConfig(batch_messages=most), EventClock.of(store))


@dataclass
class Engine:
    """Reads a source as Beam does: it keeps readers, drops them, and goes back to marks as it likes."""

    source: PartitionSource
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    batches: list[Batch] = field(default_factory=list)
    reader: PartitionReader | None = None
    is_started: bool = False
    marks: list[tuple[int, Mark | None]] = field(default_factory=lambda: [(0, None)])

    def step(self) -> bool:
        """Ask for the next batch; say whether there was one."""
        if self.reader is None:
            self.reader, self.is_started = self.source.create_reader(None, self.marks[-1][1]), False
        before = self.reader.get_watermark()
        found = self.reader.advance() if self.is_started else self.reader.start()
        self.is_started = True
        if found:
            assert self.reader.get_current_timestamp() == before, "an element is never late"
            self.batches.append(self.reader.get_current())
        assert self.reader.get_watermark() >= before
        return found

    def checkpoint(self) -> None:
        """Cut a mark as a bundle ends; go on with the reader, or with a new one, or from an older mark."""
        assert self.reader is not None
        coder = self.source.get_checkpoint_mark_coder()
        self.marks.append((len(self.batches), coder.decode(coder.encode(self.reader.get_checkpoint_mark()))))
        match self.chance.randrange(4):
            case 0:
                self.reader = None
            case 1:
                # What came after this mark was not durable.
                del self.marks[self.chance.randrange(len(self.marks)) + 1 :]
                del self.batches[self.marks[-1][0] :]
                self.reader = None

    def read_to(self, stop: int, steps: int = 3000) -> list[Batch]:
        for _ in range(steps):
            if self.step() and self.chance.random() < 0.3:
                self.checkpoint()
            if self.batches and self.batches[-1].stop >= stop:
                return self.batches
        raise AssertionError(f"{stop} is not reached: {[(one.start, one.stop) for one in self.batches[-3:]]}")

    def wait_for(self, is_true: Callable[[], bool], seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not is_true():
            assert time.monotonic() < end
            self.step()
            time.sleep(0.02)

    @property
    def watermark_ms(self) -> int:
        assert self.reader is not None
        return int(self.reader.get_watermark().micros // 1000)


def check_tiles(batches: list[Batch], start: int, stop: int) -> None:
    assert [batches[0].start, *(one.stop for one in batches)] == [*(one.start for one in batches), stop]
    assert batches[0].start == start
    for before, one in itertools.pairwise(batches):
        assert before.watermark_ms <= one.watermark_ms
    for one in batches:
        assert one.start < one.stop <= one.size
        assert all(one.start <= position < one.stop for position in positions([one]))


def positions(batches: list[Batch]) -> list[int]:
    """Every position that batches account for by a row, a dead letter or a message without a value."""
    return [
        position
        for one in batches
        for position in sorted(
            [
                *one.rows.column(columns.POSITION).to_pylist(),
                *(letter.position for letter in one.letters),
                *one.skipped.tolist(),
            ]
        )
    ]


def event_ids(batches: list[Batch]) -> list[str]:
    return [found for one in batches for found in one.rows.column(columns.EVENT_ID).to_pylist()]


@pytest.mark.parametrize("seed", range(4))
def test_every_message_comes_once_whatever_happens_to_readers(tmp_path: Path, broker: Broker, seed: int) -> None:
    topic = new_topic(broker, 2)
    sent = [
        *values(range(60), "a"),
        b"not json",
        None,
        *values(range(60, 90), "b"),
        b" ",
        b"{}",
        *values(range(90, 99)),
    ]
    broker.send(topic, sent, 0)
    broker.send(topic, values(range(20), "other"), 1)
    first, second = begin(tmp_path, config(tmp_path, broker, topic, **SMALL))
    engine = Engine(first, random.Random(seed))
    batches = engine.read_to(len(sent))
    check_tiles(batches, 0, len(sent))
    assert positions(batches) == list(range(len(sent)))
    assert event_ids(batches) == [f"a-{n}" for n in range(60)] + [f"b-{n}" for n in range(60, 90)] + [
        f"e-{n}" for n in range(90, 99)
    ]
    assert [(letter.position, letter.reason) for one in batches for letter in one.letters] == [
        (60, "malformed_json"),
        (93, "missing_field"),
    ]
    assert [at for one in batches for at in one.skipped.tolist()] == [61, 92]
    assert len(event_ids(Engine(second).read_to(20))) == 20


def test_two_readers_of_a_partition_do_not_disturb_each_other(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker)
    broker.send(topic, values(range(50)))
    [source] = begin(tmp_path, config(tmp_path, broker, topic))
    one, other = Engine(source), Engine(source, random.Random(1))
    while min(len(engine.batches) and engine.batches[-1].stop for engine in (one, other)) < 50:
        one.step()
        other.step()
    for engine in (one, other):
        check_tiles(engine.batches, 0, 50)
        assert event_ids(engine.batches) == [f"e-{n}" for n in range(50)]


def test_a_batch_is_bounded_in_messages_and_in_bytes(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker)
    broker.send(topic, [b'{"filler": "%s"}' % (b"x" * 3000)] * 5000)
    [source] = begin(tmp_path, config(tmp_path, broker, topic, chunk_bytes=3_000_000), most=4000)
    batches = Engine(source, random.Random(7)).read_to(5000)
    assert positions(batches) == list(range(5000))
    assert max(one.stop - one.start for one in batches) <= 2048, "3 MB are in fewer messages than are taken at once"


def test_offsets_that_transactions_and_compaction_have_taken_are_in_a_tile(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker)
    producer = broker.producer(**{"transactional.id": topic})
    producer.init_transactions(30)
    for number, commit in enumerate([True, False, True, False]):
        producer.begin_transaction()
        for value in values(range(10 * number, 10 * number + 10), f"t{number}"):
            producer.produce(topic, value, partition=0)
        producer.flush(30)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
    # The mark of the last one comes a moment later.
    while (end := ends(broker, topic)) < 44:
        time.sleep(0.1)
    [source] = begin(tmp_path, config(tmp_path, broker, topic))
    batches = Engine(source).read_to(end)
    check_tiles(batches, 0, 44)
    assert event_ids(batches) == [f"t0-{n}" for n in range(10)] + [f"t2-{n}" for n in range(20, 30)]


def test_compacted_offsets_are_in_a_tile(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker, **COMPACTED)
    for tag in ("old", "new"):
        broker.send(topic, values(range(20), tag))
    # The newest segment is never compacted: it is another one by now.
    time.sleep(0.2)
    broker.send(topic, [None])
    engine = Engine(begin(tmp_path, config(tmp_path, broker, topic))[0])
    while broker.count(topic) > 21:
        time.sleep(0.1)
    batches = engine.read_to(41)
    check_tiles(batches, 0, 41)
    assert event_ids(batches) == [f"new-{n}" for n in range(20)]


def test_an_open_transaction_is_no_silence(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker)
    broker.send(topic, values(range(5)), timestamp_ms=now(5))
    producer = broker.producer(**{"transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, values(range(5, 6))[0], partition=0, timestamp=now(6))
    producer.flush(30)
    engine = Engine(begin(tmp_path, config(tmp_path, broker, topic, **SMALL))[0])
    engine.read_to(5)
    held = engine.watermark_ms
    assert held == 1000 * (ORIGIN + 4 - 1)
    quiet = time.monotonic() + 2
    engine.wait_for(lambda: time.monotonic() > quiet)
    assert engine.watermark_ms == held
    producer.commit_transaction(30)
    engine.wait_for(lambda: engine.watermark_ms > held + 10**6)
    assert event_ids(engine.batches) == [f"e-{n}" for n in range(6)]


def test_the_watermark_of_an_idle_partition_follows_the_clock(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker, 2)
    settings = config(tmp_path, broker, topic, **SMALL)
    broker.send(topic, values(range(5)), 0)
    engines = [Engine(source) for source in begin(tmp_path, settings)]
    for engine in engines:
        engine.step()
        engine.wait_for(lambda engine=engine: engine.watermark_ms > 1000 * time.time() - 5000)
        assert engine.watermark_ms <= 1000 * (time.time() - settings.idle_seconds - settings.allowed_lateness_seconds)
        # A new reader need not wait again: it is the process that knows.
        engine.reader, before = None, engine.watermark_ms
        engine.marks.append((len(engine.batches), Mark(5 if engine.batches else 0, before)))
        engine.step()
        assert engine.watermark_ms >= before


def test_a_partition_of_refused_messages_holds_no_window(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker)
    broker.send(topic, [b"not json"] * 10, timestamp_ms=now(100))
    engine = Engine(begin(tmp_path, config(tmp_path, broker, topic, **SMALL))[0])
    engine.read_to(10)
    # Seconds of arrival are rounded up; .4 idle and 1 late.
    assert engine.watermark_ms == 1000 * (ORIGIN + 101) - 1400


def test_a_broker_that_is_away_advances_nothing_and_loses_nothing(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker)
    settings = config(tmp_path, broker, topic, idle_seconds=2, allowed_lateness_seconds=0, kafka={"timeout_seconds": 1})
    broker.send(topic, values(range(10)))
    [source] = begin(tmp_path, settings)
    engine, client = Engine(source), consumer_of(settings, source.reading.partition).client
    engine.read_to(10)
    with broker.away():
        # Longer than after which silence counts.
        quiet, held = time.monotonic() + 5, engine.watermark_ms
        while time.monotonic() < quiet:
            before = time.monotonic()
            engine.step()
            assert time.monotonic() - before < 1, "no step blocks"
            assert engine.watermark_ms < 1000 * time.time() - 2000
            time.sleep(0.1)
        # An answer that was on its way when it went is no more than that.
        assert engine.watermark_ms == held
        assert quiet - 5 < (client.unanswered_since or 0) - time.time() + time.monotonic() < quiet, "it says since when"
    # What was produced meanwhile is not late, though it comes only now.
    fresh = round(1000 * time.time()) - 4000
    assert engine.watermark_ms <= fresh
    broker.send(topic, values(range(10, 20)))
    engine.read_to(20)
    check_tiles(engine.batches, 0, 20)
    assert client.unanswered_since is None


def test_a_partition_ends_where_its_messages_are_gone(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker)
    broker.send(topic, values(range(10)))
    [source] = begin(tmp_path, config(tmp_path, broker, topic))
    broker.send(topic, values(range(10, 30)))
    engine = Engine(source, random.Random(3))
    engine.read_to(7)
    broker.drop(topic, 0, 25)
    # What the client has fetched before is as good as ever.
    check_tiles(engine.read_to(30), 0, 30)
    engine = Engine(source, random.Random(3))
    engine.wait_for(lambda: engine.reader is not None and engine.reader.get_watermark() == MAX_TIMESTAMP)
    assert engine.batches == []


def test_a_topic_created_anew_is_not_taken_for_the_old_one(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker, 2)
    broker.send(topic, values(range(10), "old"))
    source, gone = begin(tmp_path, config(tmp_path, broker, topic))
    broker.delete(topic)
    broker.create(topic, 1)
    broker.send(topic, values(range(20), "new"))
    # One is read at once, of another there is nothing to read.
    for engine in (Engine(source), Engine(gone)):
        engine.wait_for(lambda one=engine: one.reader is not None and one.reader.get_watermark() == MAX_TIMESTAMP)
        assert engine.batches == []


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", [0, 0]), ("latest", [40, 20]), (datetime.fromtimestamp(now(100) / 1000, UTC), [20, 0])],
)
def test_a_new_topic_starts_where_the_settings_say_and_the_commits_say_it_then(
    tmp_path: Path, broker: Broker, start: object, expected: list[int]
) -> None:
    topic = new_topic(broker, 2)
    settings = config(tmp_path, broker, topic, kafka={"start": start})
    broker.send(topic, values(range(20), "a"), 0, timestamp_ms=now(20))
    broker.send(topic, values(range(100, 120), "b"), 0, timestamp_ms=now(120))
    broker.send(topic, values(range(100, 120), "c"), 1, timestamp_ms=now(120))
    assert [source.reading.start for source in begin(tmp_path, settings)] == expected
    broker.send(topic, values(range(120, 130), "d"), 0, timestamp_ms=now(130))
    broker.add_partitions(topic, 3)
    assert [source.reading.start for source in begin(tmp_path, settings)] == [*expected, 0]
    assert CommitLog(Store(str(tmp_path / "store"))).newest() == 1


def test_a_partition_whose_messages_are_gone_is_stopped_until_the_gap_is_accepted(
    tmp_path: Path, broker: Broker
) -> None:
    topic = new_topic(broker, 2)
    settings = config(tmp_path, broker, topic)
    broker.send(topic, values(range(40)), 0)
    assert [source.reading.start for source in begin(tmp_path, settings)] == [0, 0]
    broker.drop(topic, 0, 25)
    store, metrics = Store(str(tmp_path / "store")), TopicMetrics(CollectorRegistry())
    source = TopicSource.open(settings, metrics)
    state = LogState.open(store)
    [other] = source.identify(source.discover(), state, InHand())
    assert other.number == 1
    with pytest.raises(StoppedPartitionError, match="the broker has deleted offsets 0 to 25"):
        source.end()
    accepting = config(tmp_path, broker, topic, kafka={"accept_gap": True})
    assert [source.reading.start for source in begin(tmp_path, accepting)] == [25, 0]
    assert [source.reading.start for source in begin(tmp_path, settings)] == [25, 0]


def test_the_watermark_starts_at_the_end_of_the_newest_window(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker)
    settings = config(tmp_path, broker, topic)
    [source] = begin(tmp_path, settings)
    assert source.reading.watermark_ms == 0
    state = LogState(
        sources={source.reading.partition.key: SourceSpan(start=0, stop=0, resume=0, size=0)}, starts=[10_000]
    )
    [again] = sources([source.reading.partition], state, settings, StreamConfig(), EventClock())
    assert again.reading.watermark_ms == 20_000


def test_while_a_schema_registry_is_away_nothing_is_judged_and_no_window_closes(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker)
    with schema_registry() as registry:
        number = registry.register(topic, {"schema": '"string"'})
        broker.send(topic, [b"\0" + number.to_bytes(4, "big") + b"\x02a"] * 3)
        kafka_settings = {"format": "avro", "registry": {"url": registry.url}}
        [source] = begin(tmp_path, config(tmp_path, broker, topic, **SMALL, kafka=kafka_settings))
        engine, registry.status = Engine(source), 503
        engine.wait_for(lambda: registry.asked > 5)
        before = engine.watermark_ms
        time.sleep(2 * SMALL["idle_seconds"])
        assert not engine.step()
        assert engine.watermark_ms == before
        registry.status = 200
        engine.wait_for(lambda: bool(engine.batches))
    assert sum(len(one.letters) for one in engine.batches) == 3
    assert {letter.reason for one in engine.batches for letter in one.letters} == {"not_an_object"}


def test_every_client_finds_a_broker_that_comes_back_at_another_address(tmp_path: Path) -> None:
    hosts = named_hosts(tmp_path)
    with kafka(tmp_path) as broker:
        for topic in ("clicks", "clicks-sent"):
            broker.create(topic, 1)
        broker.send("clicks", values(range(10)))
        hosts.set({NAME: "127.0.0.1"})
        with moved_broker.running(hosts, f"kafka://{broker.named}/clicks", tmp_path) as clients:
            clients.wait_for(reader=10, driver=10)
            wait_until(lambda: ends(broker, "clicks-sent") > 0)
            with broker.killed():
                broker.move("127.0.0.2")
                hosts.set({NAME: "127.0.0.2"})
            sent = ends(broker, "clicks-sent")
            broker.send("clicks", values(range(10, 300)))
            clients.wait_for(reader=300, driver=300, follower=200)
            wait_until(lambda: ends(broker, "clicks-sent") > sent)
