from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import CorruptArtefactError, EventClock, Store
from weir.contracts.storage.documents import encode_fields


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


@given(st.integers(0, 2**41), st.floats(1e-3, 1e6), st.floats(0, 2e9))
def test_both_directions_agree_across_the_end_of_a_replay(event_ms: int, speed: float, event_end: float) -> None:
    clock = EventClock(event_origin=1e9, wall_origin=1.8e9, speed=speed, event_end=event_end)
    assert clock.event_ms(clock.wall_time(event_ms)) == pytest.approx(event_ms, abs=1 + speed * 1e-3)


def test_behind_the_end_of_a_replay_time_runs_at_speed_one() -> None:
    clock = EventClock(event_origin=1000, wall_origin=5000, speed=100, event_end=2000)
    assert clock.wall_time(2_000_000) == 5010
    assert clock.wall_time(2_003_000) == 5013
    assert clock.event_ms(5013) == 2_003_000


def test_a_damaged_clock_is_named_in_one_line(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write("CLOCK.json", encode_fields(b'{\n"speed": -1}'))
    with pytest.raises(CorruptArtefactError) as refusal:
        EventClock.of(store)
    assert str(refusal.value) == (
        f"{tmp_path}/CLOCK.json: is not a valid EventClock: speed: Input should be greater than 0"
    )


def test_a_bit_that_flips_in_a_clock_is_noticed(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    EventClock(speed=100).save(store)
    store.write("CLOCK.json", store.read("CLOCK.json").replace(b"100", b"900"))
    with pytest.raises(CorruptArtefactError, match=r"CLOCK\.json: has checksum"):
        EventClock.of(store)
