"""A stream on Flink is killed again and again, part by part; each offset of the topic is accounted for once."""

import json
from itertools import cycle, islice
from pathlib import Path
from time import sleep

import pytest
from confluent_kafka import Consumer, TopicPartition

from contracts import LogState
from tests.campaigns import committed_once, size
from tests.campaigns.stream_faults import Stream, producing, recovered, streaming
from tests.campaigns.stream_truth import Truth, check
from tests.campaigns.tally import counting
from tests.integration.test_kafka import wait_until

PATIENCE = 240.0
"""Seconds within which a commit has to follow any fault; how long it takes is reported, not tested."""

LIMIT = size.of(1200, 10_800)
"""Seconds for the whole test: on cores that other tests keep busy, an engine takes a minute to come back."""


@pytest.mark.timeout(LIMIT)
def test_killed_part_by_part_a_stream_accounts_for_every_offset_once(tmp_path: Path) -> None:
    kills, events = size.of(9, 100), size.of(60_000, 5_000_000)
    with streaming(tmp_path, "events", seed=1) as stream:
        stream.heal()
        with producing(stream, events, size.of(500, 2500)) as producer:
            wait_until(lambda: stream.newest() >= 1, PATIENCE)
            for number, (name, fault) in enumerate(islice(cycle(stream.faults().items()), kills)):
                if number == kills // 3:
                    stream.another_job()
                with counting(f"kills: stream, {name}") as row:
                    took = recovered(stream, fault, PATIENCE)
                    row.faults, row.without_effect = row.faults + 1, row.without_effect + 1
                with (tmp_path / "recoveries.jsonl").open("a") as file:
                    file.write(json.dumps({"fault": name, "seconds": round(took, 1)}) + "\n")
                sleep(stream.chance.uniform(0, 3))
            if size.IS_LONG:
                producer.wait()
        ends = _ends(stream)
        assert ends[3] == 0 < min(ends[number] for number in range(3)), "one partition is idle"
        wait_until(lambda: _is_complete(stream, ends), PATIENCE)
        stream.kill_driver()
        stream.kill_service("worker-pool")
        truth = Truth.of(stream.servers, stream.topic, ends, stream.pipeline.window_ms)
    assert truth.duplicates > 0 < truth.without_value
    assert LogState.open(stream.store).counts.late > 0
    check(stream.store, truth, stream.pipeline)
    committed_once.check_commits(stream.store)
    committed_once.sweep(stream.store, grace_seconds=0)
    assert committed_once.leftovers(stream.store) == []


def _ends(stream: Stream) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": stream.servers, "group.id": "ends"})
    return {at: consumer.get_watermark_offsets(TopicPartition(stream.topic, at), 30)[1] for at in range(4)}


def _is_complete(stream: Stream, ends: dict[int, int]) -> bool:
    spans = LogState.open(stream.store).sources
    return {int(key.rpartition("/")[2]): (span.resume, span.stop) for key, span in spans.items()} == {
        number: (end, end) for number, end in ends.items()
    }
