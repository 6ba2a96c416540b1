import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.monitoring.producer import Producer
from weir.contracts import Store


@pytest.fixture(scope="module")
def producer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Producer]:
    thread = Producer(Store(str(tmp_path_factory.mktemp("log"))), rate=600)
    thread.start()
    yield thread
    thread.stopped.set()
    thread.join()


def segments(producer: Producer) -> list[Path]:
    return sorted(Path(producer.folder.path("")).glob("*.jsonl"))


def next_segments(producer: Producer, count: int = 2) -> list[list[str]]:
    """Return the lines of the next segments but one: the first may have been started before."""
    before = len(segments(producer))
    end = time.monotonic() + 60
    while len(segments(producer)) < before + 1 + count:
        assert time.monotonic() < end
        time.sleep(0.1)
    return [path.read_text().splitlines() for path in segments(producer)[before + 1 :]]


def events(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def test_events_happen_now(producer: Producer) -> None:
    now = 1000 * time.time()
    for lines in next_segments(producer):
        assert len(lines) == 300
        assert all(0 <= event["timestamp"] - now < 60_000 for event in events(lines))


def test_a_stuck_clock_repeats_one_time(producer: Producer) -> None:
    producer.stuck.set()
    times = {event["timestamp"] for lines in next_segments(producer) for event in events(lines)}
    producer.stuck.clear()
    assert len(times) == 1


def test_a_third_of_the_lines_is_broken(producer: Producer) -> None:
    producer.broken.set()
    lines = [line for found in next_segments(producer) for line in found]
    producer.broken.clear()
    assert 0.2 < sum(not line.endswith("}") for line in lines) / len(lines) < 0.5


def test_misjoined_events_keep_users_and_items_but_not_their_pairs(producer: Producer) -> None:
    def repeats(lines: list[str]) -> float:
        """Return how often an event's user plays something of the same genre as the user's event before."""
        last: dict[str, str] = {}
        same = []
        for event in events(lines):
            genre = event["item_id"].split("-")[0]
            if event["user_id"] in last:
                same.append(last[event["user_id"]] == genre)
            last[event["user_id"]] = genre
        return sum(same) / max(len(same), 1)

    def mean(found: list[list[str]]) -> float:
        return repeats([line for lines in found for line in lines])

    good = mean(next_segments(producer, 6))
    producer.misjoined.set()
    bad = mean(next_segments(producer, 6))
    producer.misjoined.clear()
    assert good > 2 * bad


def test_silence_is_silent(producer: Producer) -> None:
    producer.silent.set()
    time.sleep(1)
    before = len(segments(producer))
    time.sleep(1.5)
    assert len(segments(producer)) == before
    producer.silent.clear()
