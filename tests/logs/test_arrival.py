import os
from pathlib import Path

import pytest

from contracts import EventClock
from logs import Format, LogConfig, Partition, discover, latest_event_ms

TEN_MINUTES = 600_000


def partition(arrival_ms: int | None) -> Partition:
    return Partition("a", "a", Format.JSON_LINES, 1, arrival_ms=arrival_ms)


def test_a_live_log_may_be_as_far_ahead_as_the_tolerance_says() -> None:
    arrived = partition(1_700_000_000_500)
    assert latest_event_ms(arrived, EventClock(), LogConfig()) == 1_700_000_001_500 + TEN_MINUTES
    strict = LogConfig(clock_tolerance_minutes=0.5)
    assert latest_event_ms(arrived, EventClock(), strict) == 1_700_000_001_500 + 30_000


def test_a_replay_is_judged_by_its_own_clock() -> None:
    clock = EventClock(event_origin=1000, wall_origin=5000, speed=60, event_end=4600)
    config = LogConfig(clock_tolerance_minutes=0)
    assert latest_event_ms(partition(5_009_000), clock, config) == 1_600_000
    assert latest_event_ms(partition(5_059_000 + 7000), clock, config) == 4_607_000
    # Placed before the replay was stopped and started again: what was placed then is older than its start.
    assert latest_event_ms(partition(4_000_000), clock, config) == 1_000_000


def test_without_an_arrival_there_is_no_bound() -> None:
    assert latest_event_ms(partition(None), EventClock(), LogConfig()) is None


@pytest.mark.parametrize("modified", [1_700_000_000, 1_700_000_000.25])
def test_the_bound_follows_the_file_and_not_the_reader(tmp_path: Path, modified: float) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}\n")
    os.utime(tmp_path / "a.jsonl", (modified, modified))
    [found] = discover(str(tmp_path))
    assert latest_event_ms(found, EventClock(), LogConfig()) == round(1000 * modified) + 1000 + TEN_MINUTES
