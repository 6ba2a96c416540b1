"""Erasure, ingest of files and of a topic, and rebuild, each killed at random moments: every event counts once."""

import random
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from prometheus_client import CollectorRegistry

from tests.campaigns import committed_once
from tests.campaigns.forget_lives import FORGOTTEN
from tests.campaigns.hunter import counting, size_of
from tests.campaigns.ingest_lives import WHOLE, WINDOW_SECONDS, events_of, settings
from tests.campaigns.lives import ROOT
from tests.campaigns.rebuild_lives import WINDOW_SECONDS as REBUILT_WINDOW_SECONDS
from tests.campaigns.rebuild_lives import parts
from tests.campaigns.topic_lives import events_at
from tests.campaigns.topic_lives import settings as topic_settings
from tests.integration.kafka_broker import Broker, ends
from tests.pipelines import support
from tests.pipelines.sources.kafka.support import new_topic
from tests.pipelines.support import Event
from weir.contracts import CommitLog, LogState, Store, WindowLog
from weir.contracts.verification import verify
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.maintenance.erased_files import Forgotten
from weir.pipelines.maintenance.erasure_check import sightings
from weir.pipelines.runs.run_registry import sweep


def test_killed_again_and_again_only_the_forgotten_are_gone(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with counting("kills: forget") as row:
        row.faults = size_of(6, 40)
        command = [sys.executable, "-m", "tests.campaigns.forget_lives", str(tmp_path), "1", str(row.faults)]
        subprocess.run(command, check=True, cwd=ROOT)
        store = Store(str(tmp_path / "store"))
        events = [event for part in range(row.faults) for event in events_of(part) if event.user not in FORGOTTEN]
        assert support.stored_events(store) == support.expected_events(events, WINDOW_SECONDS)
        memory = defaultdict[int, list[tuple[int, int]]](list)
        for pane in WindowLog(store):
            for one in WindowLog(store).all_examples(pane).to_pylist():
                if one["label"] == 1:
                    memory[one["user_key"]].append((one["timestamp"], one["item_key"]))
        support.check_users(store, settings(tmp_path).history_length, memory)
        committed_once.check_commits(store)
        assert sum(CommitLog(store).get(n).forgets > 0 for n in range(CommitLog(store).newest() + 1)) > 1
        sweep(store, grace_seconds=0)
        assert committed_once.leftovers(store) == []
        # The log itself is its owner's to redact; what is in hand of a pipeline was swept away.
        assert sightings(store, Forgotten.of(FORGOTTEN)) == []
        row.without_effect = row.faults


def test_killed_again_and_again_every_event_is_committed_once(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with counting("kills: ingest") as row:
        row.faults = size_of(24, 40)
        command = [sys.executable, "-m", "tests.campaigns.ingest_lives", str(tmp_path), "1", str(row.faults)]
        subprocess.run(command, check=True, cwd=ROOT)
        store = Store(str(tmp_path / "store"))
        committed_once.check(store, range(row.faults + WHOLE), settings(tmp_path).history_length)
        log = CommitLog(store)
        commits = [log.get(number) for number in range(log.newest() + 1)]
        assert any(file.replaces for commit in commits for file in commit.histories), "no merge was committed"
        assert (tmp_path / "killed").read_text(), "no life was killed within a run: the test has not tested that"
        row.without_effect = row.faults


def test_killed_again_and_again_a_rebuild_holds_every_event_once(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with counting("kills: rebuild") as row:
        kills = size_of(4, 40)
        _, row.faults = parts(kills)
        command = [sys.executable, "-m", "tests.campaigns.rebuild_lives", str(tmp_path), "1", str(kills)]
        subprocess.run(command, check=True, cwd=ROOT)
        store = Store(str(tmp_path / "store"))
        events = [event for part in range(row.faults) for event in events_of(part)]
        assert support.stored_events(store) == support.expected_events(events, REBUILT_WINDOW_SECONDS)
        support.check_counts(store)
        support.check_histories(store, 5)
        assert LogState.open(store).moved_from == str(tmp_path.resolve() / "origin")
        assert verify(store).findings == []
        row.without_effect = row.faults


def test_killed_again_and_again_every_offset_is_accounted_for_once(tmp_path: Path, broker: Broker) -> None:
    topic, store = new_topic(broker, 3), Store(str(tmp_path / "store"))
    url = broker.url(topic)
    with counting("kills: ingest of a topic") as row:
        row.faults = size_of(8, 60)
        command = [sys.executable, "-m", "tests.campaigns.topic_lives", str(tmp_path), url, "1", str(row.faults)]
        with subprocess.Popen(command, cwd=ROOT) as hunter:
            events, dead = write_while(broker, topic, hunter)
        assert hunter.returncode == 0
        ingest(store, topic_settings(tmp_path, url), registry=CollectorRegistry())
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
