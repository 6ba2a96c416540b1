"""A stream on Flink is killed again and again, part by part; each offset of the topic is accounted for once."""

import logging
from contextlib import closing
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import monotonic, sleep

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.campaigns import committed_once
from tests.campaigns.hunter import IS_LONG, NOTES, counting, size_of
from tests.campaigns.stream_faults import PATIENCE, Stream, producing, recovered, streaming
from tests.campaigns.stream_truth import Truth, check
from tests.integration.test_kafka import wait_until
from weir.contracts import LogState

logger = logging.getLogger(__name__)

LIMIT = size_of(1200, 21_600)
"""Seconds for the whole test: on cores that other tests keep busy, an engine takes a minute to come back."""


@pytest.mark.timeout(LIMIT)
def test_killed_part_by_part_a_stream_accounts_for_every_offset_once(tmp_path: Path) -> None:
    messages = size_of(0, 5_000_000)
    with streaming(tmp_path, "events", seed=1) as stream:
        stream.heal()
        with producing(stream, size_of(500, 4000)):
            wait_until(lambda: stream.newest() >= 1, PATIENCE)
            _kill_in_turn(stream, size_of(9, 100))
            while sum(_ends(stream).values()) < messages:
                sleep(5)
        _check(stream)


@pytest.mark.skipif(not IS_LONG, reason="the short form: the broker moves in the test above, two times")
@pytest.mark.timeout(LIMIT)
def test_a_broker_that_comes_back_at_another_address_is_read_on_within_a_minute(tmp_path: Path) -> None:
    # An address is good for a day: no client finds the broker by itself.
    kafka = {"timeout_seconds": 5, "options": {"broker.address.ttl": 86_400_000}}
    with streaming(tmp_path, "events", seed=2, kafka=kafka) as stream:
        if stream.hosts is None:
            pytest.skip("no mount namespace, in which a name moves to another address")
        stream.heal()
        with producing(stream, 500):
            wait_until(lambda: stream.newest() >= 1, PATIENCE)
            took = [recovered(stream, partial(stream.kill_service, "kafka")) for _ in range(20)]
        logger.info("next commits after %s s", [round(seconds) for seconds in took])
        _check(stream)
    NOTES.append(
        f"kills: stream, the broker moves: next commit after {median(took):.0f} s, {max(took):.0f} s (longest)"
    )
    assert max(took) < 60


def _check(stream: Stream) -> None:
    """Wait until all is committed, and compare it with the topic."""
    ends = _ends(stream)
    assert ends[3] == 0 < min(ends[number] for number in range(3)), "one partition is idle"
    _wait_for_all(stream, ends)
    stream.kill_driver()
    stream.kill_service("worker-pool")
    truth = Truth.of(stream.servers, stream.topic, ends, stream.pipeline.window_ms)
    state = LogState.open(stream.store)
    assert truth.duplicates > 0 < truth.without_value
    assert state.counts.late > 0
    NOTES.append(
        f"kills: stream: {sum(ends.values()):,} messages: {state.counts.events:,} events, {state.counts.late:,} of "
        f"them late, {truth.duplicates:,} duplicates, {state.dead:,} malformed, {truth.without_value:,} without a "
        f"value; {state.number + 1:,} commits"
    )
    check(stream.store, truth, stream.pipeline)
    committed_once.check_commits(stream.store)
    committed_once.sweep(stream.store, grace_seconds=0)
    assert committed_once.leftovers(stream.store) == []


def _kill_in_turn(stream: Stream, kills: int) -> None:
    """Cause fault after fault, a second job on the same store after a third of them; notes how long each took."""
    took: dict[str, list[float]] = {name: [] for name in stream.faults()}
    for number, (name, fault) in enumerate(islice(cycle(stream.faults().items()), kills)):
        if number == kills // 3:
            stream.another_job()
        with counting(f"kills: stream, {name}") as row:
            took[name].append(recovered(stream, fault))
            logger.info("kill %d, %s: next commit after %.1f s", number + 1, name, took[name][-1])
            row.faults, row.without_effect = row.faults + 1, row.without_effect + 1
        sleep(stream.chance.uniform(0, 3))
    NOTES.extend(
        f"kills: stream, {name}: next commit after {median(seconds):.0f} s (median), {max(seconds):.0f} s (longest)"
        for name, seconds in took.items()
        if seconds
    )


def _ends(stream: Stream) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": stream.servers, "group.id": "ends"})
    with closing(consumer):
        return {at: consumer.get_watermark_offsets(TopicPartition(stream.topic, at), PATIENCE)[1] for at in range(4)}


def _wait_for_all(stream: Stream, ends: dict[int, int]) -> None:
    """Wait until all is committed, as long as commits come: a stream that was killed for an hour is far behind."""
    newest, since = stream.newest(), monotonic()
    while not _is_complete(stream, ends):
        if stream.newest() > newest:
            newest, since = stream.newest(), monotonic()
        assert monotonic() - since < PATIENCE, f"no commit follows {newest}"
        sleep(1)


def _is_complete(stream: Stream, ends: dict[int, int]) -> bool:
    spans = LogState.open(stream.store).sources
    return {int(key.rpartition("/")[2]): (span.resume, span.stop) for key, span in spans.items()} == {
        number: (end, end) for number, end in ends.items()
    }
