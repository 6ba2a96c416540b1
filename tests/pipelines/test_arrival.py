import os
from pathlib import Path

import pytest

from contracts import EventClock, Store
from pipelines.arrival import latest_event_ms
from pipelines.config import PipelineConfig
from pipelines.sources import Format, Partition, discover
from pipelines.transforms.dead_letters import read_dead_letters
from tests.pipelines import support
from tests.pipelines.support import ORIGIN, Event

TEN_MINUTES = 600_000


def partition(arrival_ms: int | None) -> Partition:
    return Partition("a", "a", Format.JSON_LINES, 1, arrival_ms=arrival_ms)


def test_a_live_log_may_be_as_far_ahead_as_the_tolerance_says() -> None:
    arrived = partition(1_700_000_000_500)
    assert latest_event_ms(arrived, EventClock(), PipelineConfig()) == 1_700_000_001_500 + TEN_MINUTES
    strict = PipelineConfig(clock_tolerance_minutes=0.5)
    assert latest_event_ms(arrived, EventClock(), strict) == 1_700_000_001_500 + 30_000


def test_a_replay_is_judged_by_its_own_clock() -> None:
    clock = EventClock(event_origin=1000, wall_origin=5000, speed=60, event_end=4600)
    config = PipelineConfig(clock_tolerance_minutes=0)
    assert latest_event_ms(partition(5_009_000), clock, config) == 1_600_000
    assert latest_event_ms(partition(5_059_000 + 7000), clock, config) == 4_607_000
    # Placed before the replay was stopped and started again: what was placed then is older than its start.
    assert latest_event_ms(partition(4_000_000), clock, config) == 1_000_000


def test_without_an_arrival_there_is_no_bound() -> None:
    assert latest_event_ms(partition(None), EventClock(), PipelineConfig()) is None


@pytest.mark.parametrize("modified", [1_700_000_000, 1_700_000_000.25])
def test_the_bound_follows_the_file_and_not_the_reader(tmp_path: Path, modified: float) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}\n")
    os.utime(tmp_path / "a.jsonl", (modified, modified))
    [found] = discover(str(tmp_path))
    assert latest_event_ms(found, EventClock(), PipelineConfig()) == round(1000 * modified) + 1000 + TEN_MINUTES


@pytest.mark.parametrize("is_replay", [False, True])
def test_one_clock_that_runs_ahead_closes_no_window(tmp_path: Path, *, is_replay: bool) -> None:
    store, config = Store(str(tmp_path / "store")), support.config(tmp_path)
    arrived = 5000.0 if is_replay else ORIGIN + 30.0
    if is_replay:
        EventClock(event_origin=ORIGIN + 30, wall_origin=5000, speed=60).save(store)
    seconds = [1, 12, 23, 23 + 23 * 3600, 29]
    support.write_lines(tmp_path / "log/a.jsonl", [Event("u", "i", second).line() for second in seconds])
    os.utime(tmp_path / "log/a.jsonl", (arrived, arrived))
    support.run(store, config, flush=False)
    assert [manifest.start_ms // 1000 - ORIGIN for manifest in support.committed(store)] == [0, 10]
    [name] = store.glob("dead-letters/a.jsonl/*.jsonl")
    assert [letter.reason for letter in read_dead_letters(store, name)] == ["ahead_of_arrival"]
    support.run(store, config)
    on_time = [Event("u", "i", second) for second in seconds if second < 3600]
    assert support.stored_events(store) == support.expected_events(on_time)
