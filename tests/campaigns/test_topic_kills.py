"""An ingest that follows a topic is killed at random moments; every event is committed once, every offset counted."""

import random
import subprocess
import sys
import time
from pathlib import Path

from prometheus_client import CollectorRegistry

from tests.campaigns import committed_once, size
from tests.campaigns.ingest_lives import WINDOW_SECONDS
from tests.campaigns.lives import ROOT
from tests.campaigns.tally import counting
from tests.campaigns.topic_lives import events_at, settings
from tests.integration.kafka_broker import Broker, ends
from tests.pipelines import support
from tests.pipelines.sources.kafka.support import new_topic
from tests.pipelines.support import Event
from weir.contracts import LogState, Store
from weir.pipelines.batch.ingest import ingest


def test_killed_again_and_again_every_offset_is_accounted_for_once(tmp_path: Path, broker: Broker) -> None:
    topic, store = new_topic(broker, 3), Store(str(tmp_path / "store"))
    url = broker.url(topic)
    with counting("kills: ingest of a topic") as row:
        row.faults = size.of(8, 60)
        command = [sys.executable, "-m", "tests.campaigns.topic_lives", str(tmp_path), url, "1", str(row.faults)]
        with subprocess.Popen(command, cwd=ROOT) as hunter:
            events, dead = write_while(broker, topic, hunter)
        assert hunter.returncode == 0
        ingest(store, settings(tmp_path, url), registry=CollectorRegistry())
        check_offsets(store, [ends(broker, topic, number) for number in range(3)])
        state = LogState.open(store)
        assert support.stored_events(store) == support.expected_events(events, window_seconds=WINDOW_SECONDS)
        assert len(support.dead_letters(store)) == state.dead == dead > 0
        assert state.counts.late > 0
        support.check_counts(store)
        support.check_histories(store, 3)
        committed_once.check_commits(store)
        committed_once.sweep(store, grace_seconds=0)
        assert committed_once.leftovers(store) == []
        assert (tmp_path / "killed").read_text(), "no life was killed within a run: the test has not tested that"
        row.without_effect = row.faults


def check_offsets(store: Store, ends: list[int]) -> None:
    """Each offset of each partition is an event, a duplicate or a dead letter, and counted once."""
    state = LogState.open(store)
    assert ends[2] == 0 < min(ends[:2]), "one partition is idle"
    found = sorted((span.resume, span.stop) for span in state.sources.values())
    assert found == sorted((end, end) for end in ends)
    assert state.counts.events + state.counts.duplicates + state.counts.ignored + state.dead == sum(ends)
    assert state.counts.duplicates > 0


def write_while(broker: Broker, topic: str, hunter: "subprocess.Popen[bytes]") -> tuple[list[Event], int]:
    """Write events until the hunter has ended; returns them, and how many lines are malformed."""
    rng, producer = random.Random(1), broker.producer()
    events, dead, second = list[Event](), 0, 0
    while hunter.poll() is None:
        for line, event in events_at(second, rng):
            producer.produce(topic, line, partition=rng.randrange(2))
            events += [event] if event else []
            dead += event is None
        second += 1
        # Not faster than a busy machine can make windows of it.
        producer.poll(0.1)
        time.sleep(0.3)
    assert producer.flush(60) == 0
    return events, dead
