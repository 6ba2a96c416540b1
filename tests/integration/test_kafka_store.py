"""A topic of a real broker: its partitions and offsets in unusual states, and ingest from it into a store."""

import json
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from prometheus_client import CollectorRegistry

from tests.integration.kafka_broker import Broker, kafka
from tests.pipelines import support
from tests.pipelines.sources.kafka.support import config, new_topic, once, send, spans
from tests.pipelines.transforms.test_read import driver
from weir.contracts import LogState, Store
from weir.contracts.verification import verify
from weir.pipelines.batch.cut_over import cut_over
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.batch.rebuild import RebuildError, prepare
from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka_config import BrokerAwayError, KafkaConfig, Topic, TopicMissingError
from weir.pipelines.maintenance.retention import plan_retirement, retire
from weir.pipelines.sources.kafka.client import TopicClient
from weir.pipelines.sources.log import log_source
from weir.pipelines.sources.source import MovedStoreError

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


@pytest.mark.parametrize("from_log", [False, True])
def test_the_topic_goes_on_in_the_rebuild(tmp_path: Path, broker: Broker, from_log: bool) -> None:
    topic = new_topic(broker, 2)
    origin, store = Store(str(tmp_path / "origin")), Store(str(tmp_path / "store"))
    settings = config(tmp_path, broker, topic)
    written = send(broker, topic, range(0, 38, 2), "a", 0) + send(broker, topic, range(1, 33, 4), "b", 1)
    process = driver(origin, settings)
    # Rows of the last windows are in hand: in the rebuild they are those of the log.
    process.catch_up(process.source.discover(), flush=False, only_whole_lines=True)
    assert any(not span.is_done for span in LogState.open(origin).sources.values())
    other = prepare(origin, store, config(tmp_path, broker, topic, window_seconds=25, history_length=4))
    cut_over(origin, store, other, from_log=from_log)
    written += send(broker, topic, range(35, 47, 4), "c", 0) + send(broker, topic, range(40, 48, 2), "d", 1)
    with pytest.raises(MovedStoreError, match="has moved to"):
        process.catch_up(process.source.discover(), flush=True, only_whole_lines=True)
    for _ in range(2):
        ingest(store, other, registry=CollectorRegistry())
        assert support.stored_events(store) == support.expected_events(written, 25)
    assert spans(store) == {0: (22, 22), 1: (12, 12)}
    support.check_counts(store)
    support.check_histories(store, 4)
    assert [verify(one).findings for one in (origin, store)] == [[], []]


def test_what_the_broker_has_deleted_cannot_be_replayed(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker)
    origin, store = Store(str(tmp_path / "origin")), Store(str(tmp_path / "store"))
    settings = config(tmp_path, broker, topic)
    written = send(broker, topic, range(30), "a", 0)
    assert once(origin, settings).valid == 30
    broker.drop(topic, 0, 12)
    other = prepare(origin, store, settings)
    with pytest.raises(
        RebuildError, match=f"{topic}/.*/0: the old store has read this partition from 0 on, .* from 12"
    ):
        cut_over(origin, store, other, from_log=True)
    assert not LogState.open(origin).moved_to
    windows = Store(str(tmp_path / "windows"))
    cut_over(origin, windows, prepare(origin, windows, settings))
    assert support.stored_events(windows) == support.expected_events(written)


def test_the_command_names_what_is_lost_and_goes_on_when_told(tmp_path: Path, broker: Broker) -> None:
    topic, store = new_topic(broker, 2), Store(str(tmp_path / "store"))
    send(broker, topic, range(10), "a", 0)
    assert once(store, PipelineConfig(log=broker.url(topic), metrics_port=0)).valid == 10
    send(broker, topic, range(10, 30), "a", 0)
    broker.drop(topic, 0, 15)
    command = [sys.executable, "-m", "weir", "ingest", "--store", str(tmp_path / "store"), "--log", broker.url(topic)]
    command += ["--set", "pipeline.metrics_port=0", "--json"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    said = f"weir: partition 0 of topic {topic} is stopped: the broker has deleted offsets 10 to 15"
    [line] = [line for line in refused.stderr.splitlines() if line.startswith(said)]
    assert "--accept-gap" in line
    told = subprocess.run([*command, "--accept-gap"], capture_output=True, text=True, check=True)
    assert json.loads(told.stdout)["valid"] == 15
    assert spans(store) == {0: (30, 30), 1: (0, 0)}


def test_what_comes_for_a_retired_window_is_a_dead_letter_with_its_offset(tmp_path: Path, broker: Broker) -> None:
    topic, store = new_topic(broker, 2), Store(str(tmp_path / "store"))
    settings = config(tmp_path, broker, topic)
    send(broker, topic, range(0, 100, 2), "a", 0)
    send(broker, topic, range(1, 100, 2), "b", 1)
    # Commits retire whole: one per window.
    process = driver(store, settings)
    process.catch_up(process.source.discover(), flush=True, only_whole_lines=True)
    send(broker, topic, range(100, 140), "c", 0)
    assert once(store, settings).valid == 40
    state = LogState.open(store)
    retire(store, state, plan_retirement(store, state, 30, {one.key for one in log_source(settings).discover()}))
    assert state.horizon is not None
    assert sorted(spans(store)) == [0, 1], "the topic is still there: its places are kept"
    send(broker, topic, range(3, 5), "late", 1)
    send(broker, topic, range(135, 137), "in time", 1)
    summary = once(store, settings)
    assert (summary.valid, summary.dead) == (2, 2)
    letters = support.dead_letters(store)
    assert [(one.reason, one.partition.rpartition("/")[2], one.position) for one in letters] == [
        ("before_retention", "1", 50),
        ("before_retention", "1", 51),
    ]
    assert once(store, settings).runs == 0
    assert verify(store).findings == []


def test_the_places_of_a_topic_that_is_gone_retire_with_its_windows(tmp_path: Path, broker: Broker) -> None:
    topic, store = new_topic(broker), Store(str(tmp_path / "store"))
    settings = config(tmp_path, broker, topic)
    send(broker, topic, range(30), "old", 0)
    assert once(store, settings).valid == 30
    [old] = LogState.open(store).sources
    broker.delete(topic)
    broker.create(topic, 1)
    send(broker, topic, range(100, 130), "new", 0)
    assert once(store, settings).valid == 30
    state = LogState.open(store)
    assert len(state.sources) == 2
    retire(store, state, plan_retirement(store, state, 40, {one.key for one in log_source(settings).discover()}))
    assert old not in state.sources
    assert len(state.sources) == 1
    assert once(store, settings).runs == 0
