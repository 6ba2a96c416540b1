"""The bounded driver on a topic of a real broker."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from prometheus_client import CollectorRegistry

from tests.integration.kafka_broker import PASSWORD, USER, Broker, ends
from tests.pipelines import support
from tests.pipelines.sources.kafka.schema_registry import schema_registry
from tests.pipelines.sources.kafka.support import config, line, new_topic, now, once, spans, values
from tests.pipelines.support import ORIGIN, Event
from weir.contracts import CommitLog, LogState, Store
from weir.log.v1.interaction_pb2 import Interaction
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka_config import (
    KEY_PASSWORD,
    BrokerAwayError,
    KafkaSettingsError,
    StoppedPartitionError,
    TopicMissingError,
)
from weir.pipelines.kafka_config import PASSWORD as PASSWORD_VARIABLE
from weir.pipelines.runs.run_registry import append

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
}


def at(folder: Path) -> Store:
    return Store(str(folder / "store"))


def test_all_partitions_are_read_and_the_next_run_goes_on(tmp_path: Path, broker: Broker) -> None:
    topic, store = new_topic(broker, 3), at(tmp_path)
    settings = config(tmp_path, broker, topic)
    broker.send(topic, values(range(120), "a"), 0)
    broker.send(topic, values(range(70), "b"), 1)
    summary = once(store, settings)
    assert (summary.valid, summary.dead, summary.late) == (190, 0, 0)
    assert spans(store) == {0: (120, 120), 1: (70, 70), 2: (0, 0)}
    assert once(store, settings).runs == 0
    broker.send(topic, values(range(200, 230), "c"), 2)
    assert once(store, settings).valid == 30
    assert spans(store) == {0: (120, 120), 1: (70, 70), 2: (30, 30)}
    support.check_counts(store)
    support.check_histories(store, settings.history_length)


def test_a_small_run_reads_in_micro_batches_without_late_events(tmp_path: Path, broker: Broker) -> None:
    topic, store = new_topic(broker, 2), at(tmp_path)
    broker.send(topic, values(range(200), "a"), 0)
    broker.send(topic, values(range(0, 200, 4), "b"), 1)
    summary = once(store, config(tmp_path, broker, topic, run_bytes=50_000, chunk_rows=10, allowed_lateness_seconds=60))
    assert summary.runs > 2
    assert (summary.valid, summary.late) == (250, 0)


def test_a_new_process_with_small_runs_reads_all_that_waited(tmp_path: Path, broker: Broker) -> None:
    topic, store, stop = new_topic(broker), at(tmp_path), threading.Event()
    settings = config(tmp_path, broker, topic, chunk_rows=3, run_bytes=1000, allowed_lateness_seconds=5)
    broker.send(topic, [*values(range(10)), *values(range(114, 115)), *values(range(100, 110))])
    whole = settings.model_copy(update={"run_bytes": 1 << 20})
    ingest(store, whole, follow=True, stop=stop, report=lambda _: stop.set(), registry=CollectorRegistry())
    assert spans(store) == {0: (10, 21)}
    summary = once(store, settings)
    assert (summary.valid, spans(store)) == (11, {0: (21, 21)})


def test_a_bad_message_is_a_dead_letter_with_partition_and_offset(tmp_path: Path, broker: Broker) -> None:
    topic, store = new_topic(broker, 2), at(tmp_path)
    broken = [
        b"not json",
        b'{"user_id": "u"}',
        b"\xff\xfe",
        line(Event("u", "i", 3)) + b"\n" + line(Event("u", "i", 4)),
    ]
    broker.send(topic, [*values(range(3)), *broken, *values(range(5, 8))], 1)
    summary = once(store, config(tmp_path, broker, topic))
    assert (summary.valid, summary.dead) == (6, 4)
    letters = support.dead_letters(store)
    assert [(one.partition.rpartition("/")[2], one.position) for one in letters] == [("1", at) for at in range(3, 7)]
    assert [one.reason for one in letters] == ["malformed_json", "missing_field", "not_utf8", "malformed_json"]
    assert all(f"/{topic}/" in one.partition for one in letters)
    assert once(store, config(tmp_path, broker, topic)).dead == 0


def test_no_event_is_newer_than_its_own_message(tmp_path: Path, broker: Broker) -> None:
    topic, store = new_topic(broker), at(tmp_path)
    settings = config(tmp_path, broker, topic, clock_tolerance_minutes=1)
    broker.send(topic, values(range(50, 52)), timestamp_ms=now(0))
    broker.send(topic, values(range(3000, 3003), "ahead"), timestamp_ms=now(2900))
    broker.send(topic, values(range(3000, 3002), "right"), timestamp_ms=now(2999))
    summary = once(store, settings)
    assert (summary.valid, summary.dead) == (4, 3)
    letters = support.dead_letters(store)
    assert [(one.position, one.reason) for one in letters] == [(at, "ahead_of_arrival") for at in (2, 3, 4)]
    assert "the arrival of its message and pipeline.clock_tolerance_minutes allow" in letters[0].detail


def test_values_of_nothing_are_counted_once(tmp_path: Path, broker: Broker) -> None:
    topic, store, registry = new_topic(broker), at(tmp_path), CollectorRegistry()
    settings = config(tmp_path, broker, topic)
    broker.send(topic, [*values(range(5)), None, b"", *values(range(5, 9)), b" \n"])
    # A window that stays open makes the next process read everything again.
    with following(store, settings, registry) as stop:
        wait_until(lambda: metric(registry, "weir_pipeline_valueless_messages_total") == 0 and reached(registry) == 0)
        stop.set()
    registry = CollectorRegistry()
    assert once(store, settings, registry).valid == 9
    assert metric(registry, "weir_pipeline_valueless_messages_total") == 3
    assert [span.skipped for span in LogState.open(store).sources.values()] == [3]
    assert once(store, settings).runs == 0


def test_offsets_that_compaction_has_taken_are_no_holes(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker, **COMPACTED)
    store, settings = at(tmp_path), config(tmp_path, broker, topic)
    for tag in ("old", "new"):
        # The keys are the same.
        broker.send(topic, values(range(20), tag))
    # The newest segment is never compacted: it is another one by now.
    time.sleep(0.2)
    broker.send(topic, [None])
    wait_until(lambda: broker.count(topic) <= 21)
    summary = once(store, settings)
    assert (summary.valid, spans(store)) == (20, {0: (41, 41)})
    assert once(store, settings).runs == 0


def test_only_committed_transactions_are_read_and_their_marks_are_no_holes(tmp_path: Path, broker: Broker) -> None:
    topic, store = new_topic(broker), at(tmp_path)
    settings = config(tmp_path, broker, topic)
    producer = broker.producer(**{"transactional.id": topic})
    producer.init_transactions(30)
    for number, commit in enumerate([True, False, True]):
        producer.begin_transaction()
        for value in values(range(10 * number, 10 * number + 10), f"t{number}"):
            producer.produce(topic, value, partition=0)
        producer.flush(30)
        if number == 2:
            assert once(store, settings).valid == 10
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
    assert once(store, settings).valid == 10
    end = ends(broker, topic)
    assert end == 33
    assert spans(store) == {0: (end, end)}
    assert once(store, settings).runs == 0


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", 60), ("latest", 0), ("committed", 45), (datetime.fromtimestamp(now(100) / 1000, UTC), 40)],
)
def test_a_new_store_starts_where_the_settings_say_and_then_where_commits_are(
    tmp_path: Path, broker: Broker, start: object, expected: int
) -> None:
    topic, store = new_topic(broker, 2), at(tmp_path)
    group = {"group": topic} if start == "committed" else {}
    settings = config(tmp_path, broker, topic, kafka={"start": start, **group})
    broker.send(topic, values(range(20), "a"), 0, timestamp_ms=now(20))
    broker.send(topic, values(range(100, 120), "b"), 0, timestamp_ms=now(120))
    broker.send(topic, values(range(100, 120), "c"), 1, timestamp_ms=now(120))
    broker.commit(topic, group=topic, partition=0, offset=15)
    assert once(store, settings).valid == expected
    broker.send(topic, values(range(120, 125), "d"), 0, timestamp_ms=now(125))
    assert once(store, settings).valid == 5, "the commits know where it was"
    broker.add_partitions(topic, 3)
    broker.send(topic, values(range(125, 128), "e"), 2, timestamp_ms=now(128))
    assert once(store, settings).valid == 3, "a partition that the topic has got since is read whole"


def test_a_topic_created_anew_is_another_one(tmp_path: Path, broker: Broker) -> None:
    topic, store = new_topic(broker), at(tmp_path)
    settings = config(tmp_path, broker, topic, kafka={"start": "latest"})
    assert once(store, settings).valid == 0
    broker.send(topic, values(range(30), "old"))
    assert once(store, settings).valid == 30, "nothing was there, and that was committed"
    broker.delete(topic)
    with pytest.raises(TopicMissingError, match=f"know no topic {topic}"):
        once(store, settings)
    broker.create(topic, 1)
    broker.send(topic, values(range(20), "new"))
    assert once(store, settings).valid == 20
    assert len(LogState.open(store).sources) == 2


def test_what_the_broker_has_deleted_unread_stops_its_partition_until_the_gap_is_accepted(
    tmp_path: Path, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic, store = new_topic(broker, 2), at(tmp_path)
    settings = config(tmp_path, broker, topic)
    broker.send(topic, values(range(10), "a"), 0)
    broker.send(topic, values(range(10), "b"), 1)
    assert once(store, settings).valid == 20
    broker.send(topic, values(range(10, 40), "a"), 0)
    broker.send(topic, values(range(10, 15), "b"), 1)
    broker.drop(topic, 0, 25)
    registry = CollectorRegistry()
    with pytest.raises(
        StoppedPartitionError, match=f"partition 0 of topic {topic} is stopped: .* offsets 10 to 25"
    ) as error:
        once(store, settings, registry)
    assert "--accept-gap" in error.value.explain()[0]
    assert metric(registry, "weir_pipeline_stopped_partitions", reason="deleted") == 1
    assert spans(store) == {0: (10, 10), 1: (15, 15)}, "the other partition goes on"
    accepting = config(tmp_path, broker, topic, kafka={"accept_gap": True})
    registry = CollectorRegistry()
    assert once(store, accepting, registry).valid == 15
    assert metric(registry, "weir_pipeline_lost_offsets_total") == 15
    assert spans(store) == {0: (40, 40), 1: (15, 15)}
    assert once(store, settings).runs == 0


def test_a_partition_that_ends_below_what_was_read_stops_and_goes_on_as_another(tmp_path: Path, broker: Broker) -> None:
    topic, store = new_topic(broker), at(tmp_path)
    settings = config(tmp_path, broker, topic)
    broker.send(topic, values(range(10), "a"))
    assert once(store, settings).valid == 10
    lengthen(store, 30)
    with pytest.raises(
        StoppedPartitionError, match="offsets up to 30 were read, but the broker has lost those from 10 on"
    ):
        once(store, settings)
    accepting = config(tmp_path, broker, topic, kafka={"accept_gap": True})
    once(store, accepting)
    broker.send(topic, values(range(10, 15), "b"))
    assert once(store, settings).valid == 5
    assert sorted(key.rpartition("/")[2] for key in LogState.open(store).sources) == ["0", "0@2"]


def test_what_happens_to_the_topic_is_noticed_while_following(tmp_path: Path, broker: Broker) -> None:
    topic, store, registry = new_topic(broker), at(tmp_path), CollectorRegistry()
    settings = config(tmp_path, broker, topic, idle_seconds=0.5, poll_seconds=0.1)
    with following(store, settings, registry) as stop:
        broker.send(topic, values(range(10), "a"), 0)
        wait_until(lambda: LogState.open(store).counts.events == 10)
        broker.add_partitions(topic, 2)
        broker.send(topic, values(range(10, 20), "b"), 1)
        wait_until(lambda: LogState.open(store).counts.events == 20)
        broker.delete(topic)
        broker.create(topic, 2)
        broker.send(topic, values(range(20, 30), "c"), 0)
        wait_until(lambda: LogState.open(store).counts.events == 30)
        stop.set()
    # While nobody looks.
    broker.send(topic, values(range(30, 40), "d"), 1)
    broker.drop(topic, 1, 5)
    broker.send(topic, values(range(40, 50), "e"), 0)
    with following(store, settings, registry := CollectorRegistry()) as stop:
        wait_until(lambda: metric(registry, "weir_pipeline_stopped_partitions", reason="deleted") == 1)
        wait_until(lambda: LogState.open(store).counts.events == 40)
        stop.set()
    support.check_counts(store)


@pytest.mark.parametrize("away", [Broker.away, Broker.killed], ids=["hangs", "is killed"])
def test_a_broker_that_is_away_stops_nothing_and_closes_no_window(
    tmp_path: Path,
    broker: Broker,
    caplog: pytest.LogCaptureFixture,
    away: Callable[[Broker], AbstractContextManager[None]],
) -> None:
    topic, store, registry = new_topic(broker, 2), at(tmp_path), CollectorRegistry()
    settings = config(tmp_path, broker, topic, idle_seconds=6, kafka={"timeout_seconds": 2}, chunk_rows=10)
    broker.send(topic, values(range(25), "a"), 0)
    with following(store, settings, registry) as stop, caplog.at_level(logging.WARNING):
        wait_until(lambda: LogState.open(store).counts.events > 0)
        committed = LogState.open(store)
        assert committed.counts.events < 25, "a window is open"
        with away(broker):
            wait_until(lambda: metric(registry, "weir_pipeline_brokers_away") == 1)
            # Longer than after which an idle log is flushed.
            time.sleep(7)
            assert LogState.open(store).cursor == committed.cursor
        wait_until(lambda: metric(registry, "weir_pipeline_brokers_away") == 0)
        broker.send(topic, values(range(25, 40), "b"), 1)
        wait_until(lambda: LogState.open(store).counts.events == 40)
        stop.set()
    assert LogState.open(store).counts.late == 0
    said = [record.message for record in caplog.records if topic in record.message]
    # Each wait has one line and an end. The broker is away once; back again, it may elect its leaders, and says so.
    assert ["waiting" in one for one in said] == [True, False] * (len(said) // 2), said
    assert len([one for one in said if "waiting" in one and ": Broker: " not in one]) == 1, said


def test_without_a_broker_a_bounded_run_says_so(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker)
    settings = config(tmp_path, broker, topic, kafka={"timeout_seconds": 0.5})
    with broker.away(), pytest.raises(BrokerAwayError, match=topic):
        once(at(tmp_path), settings)


def test_a_user_logs_in_with_a_password_over_tls(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, store = new_topic(broker), at(tmp_path)
    broker.send(topic, values(range(5)))
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "user": USER, "ca_file": str(broker.ca)}
    settings = config(tmp_path, broker, topic, log=f"kafka://{broker.sasl}/{topic}", kafka=login)
    monkeypatch.setenv(PASSWORD_VARIABLE, "wrong")
    with pytest.raises(BrokerAwayError, match="uthentication"):
        once(store, settings)
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    unknown = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"ca_file": None})})
    with pytest.raises(BrokerAwayError, match="certificate"):
        once(store, unknown)
    assert once(store, settings).valid == 5


def test_a_client_shows_its_certificate_and_its_key_stays_encrypted(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, store = new_topic(broker), at(tmp_path)
    broker.send(topic, values(range(5)))
    tls = {"security_protocol": "SSL", "ca_file": str(broker.ca), "timeout_seconds": 3}
    shown = dict(zip(("certificate_file", "key_file"), map(str, broker.client), strict=True))
    where = f"kafka://{broker.mtls}/{topic}"
    with pytest.raises(BrokerAwayError, match="certificate"):
        once(store, config(tmp_path, broker, topic, log=where, kafka=tls))
    settings = config(tmp_path, broker, topic, log=where, kafka=tls | shown)
    monkeypatch.setenv(KEY_PASSWORD, "wrong")
    with pytest.raises(KafkaSettingsError, match=r"ssl\.key"):
        once(store, settings)
    monkeypatch.setenv(KEY_PASSWORD, PASSWORD)
    assert once(store, settings).valid == 5


def lengthen(store: Store, stop: int) -> None:
    """Commit that more was read, as if the broker had lost the end of the partition since."""
    state = LogState.open(store)
    sources = {key: span.model_copy(update={"stop": stop, "resume": stop}) for key, span in state.sources.items()}
    append(CommitLog(store), state, sources=sources)


@contextmanager
def following(store: Store, settings: PipelineConfig, registry: CollectorRegistry) -> Iterator[threading.Event]:
    stop, failures = threading.Event(), list[BaseException]()

    def live() -> None:
        try:
            ingest(store, settings, follow=True, registry=registry, stop=stop)
        except BaseException as error:  # noqa: BLE001 - raised where it is seen
            failures.append(error)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        yield stop
    except AssertionError as error:
        # What is waited for in vain may be what the pipeline died of.
        error.add_note(f"the pipeline {'runs' if thread.is_alive() else 'has ended'}, failures: {failures}")
        raise
    finally:
        stop.set()
        thread.join(60)
    assert not failures, failures


def wait_until(is_true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.05)


def metric(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def reached(registry: CollectorRegistry) -> float | None:
    return metric(registry, "weir_pipeline_unread_offsets", partition="0")


def test_protobuf_is_the_same_log(tmp_path: Path, broker: Broker) -> None:
    topic, store = new_topic(broker), at(tmp_path)
    events = [Event("u", f"i{n}", n, event_id=f"e{n}") for n in range(30)]
    messages = [
        Interaction(
            user_id=event.user,
            item_id=event.item,
            timestamp_ms=1000 * (ORIGIN + event.second),
            event_id=event.event_id,
            event_type=event.type,
        ).SerializeToString()
        for event in events
    ]
    poison = [b"\xff\xff", line(events[0]), Interaction(user_id="u", item_id="i").SerializeToString()]
    broker.send(topic, [*messages[:10], *poison, *messages[10:]])
    settings = config(tmp_path, broker, topic, kafka={"format": "protobuf"})
    assert once(store, settings).valid == 30
    assert support.stored_events(store) == support.expected_events(events)
    letters = [(one.position, one.reason) for one in support.dead_letters(store)]
    assert letters == [(10, "malformed_protobuf"), (11, "malformed_protobuf"), (12, "missing_field")]


def test_avro_is_the_same_log_and_waits_for_its_registry(tmp_path: Path, broker: Broker) -> None:
    topic, store = new_topic(broker), at(tmp_path)
    events = [Event("u", f"i{n}", n, event_id=f"e{n}") for n in range(30)]
    texts = ("user_id", "item_id", "event_id", "event_type")
    fields = [*({"name": name, "type": "string"} for name in texts), {"name": "timestamp", "type": "long"}]
    with schema_registry() as registry:
        write = AvroSerializer(
            SchemaRegistryClient({"url": registry.url}),
            json.dumps({"type": "record", "name": "Click", "fields": fields}),
            lambda event, _: {
                "user_id": event.user,
                "item_id": event.item,
                "timestamp": 1000 * (ORIGIN + event.second),
                "event_id": event.event_id,
                "event_type": event.type,
            },
        )
        context = SerializationContext(topic, MessageField.VALUE)
        messages = [write(event, context) or b"" for event in events]
        broker.send(topic, [*messages[:10], b"{}", b"\0\0\0\0\x09unknown", *messages[10:]])
        kafka = {"format": "avro", "registry": {"url": registry.url}}
        settings = config(tmp_path, broker, topic, kafka=kafka)
        registry.status = 503
        with pytest.raises(BrokerAwayError, match="no schema registry answered"):
            once(store, settings)
        registry.status = 200
        assert once(store, settings).valid == 30
    assert support.stored_events(store) == support.expected_events(events)
    letters = [(one.position, one.reason) for one in support.dead_letters(store)]
    assert letters == [(10, "malformed_avro"), (11, "malformed_avro")]


def test_json_is_decoded_as_in_files(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker)
    events = [Event("u", f"i{n}", n, event_id=f"e{n}") for n in range(30)]
    pretty = [json.dumps(event.row(), indent=1).encode() if n % 3 else line(event) for n, event in enumerate(events)]
    broker.send(topic, list(pretty))
    assert once(at(tmp_path), config(tmp_path, broker, topic)).valid == 30
    assert support.stored_events(at(tmp_path)) == support.expected_events(events)
