from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import EventClock, Store


def test_a_live_log_runs_with_the_wall_clock(tmp_path: Path) -> None:
    clock = EventClock.of(Store(str(tmp_path)))
    assert clock.wall_time(1_700_000_000_000) == 1_700_000_000
    assert clock.event_ms(1_700_000_000.5) == 1_700_000_000_500


def test_a_replay_leaves_its_clock_in_the_store(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    clock = EventClock(event_origin=956_703_932, wall_origin=1_800_000_000, speed=1000)
    clock.save(store)
    assert EventClock.of(store) == clock
    assert clock.wall_time(956_703_932_000 + 5_000_000) == 1_800_000_005


@given(st.integers(0, 2**42), st.floats(1e-3, 1e6))
def test_both_directions_agree(event_ms: int, speed: float) -> None:
    clock = EventClock(event_origin=1e9, wall_origin=1.8e9, speed=speed)
    assert clock.event_ms(clock.wall_time(event_ms)) == pytest.approx(event_ms, abs=1 + speed * 1e-3)
