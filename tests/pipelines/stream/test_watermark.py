"""The watermark of a partition against what a plain reading of its rules allows."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from weir.pipelines.stream.watermark import Watermark

TIMES = st.integers(0, 10**6)
READ = st.tuples(st.just("read"), st.none() | TIMES, st.none() | TIMES, TIMES)
SILENT = st.tuples(st.just("silent"), TIMES)


def follow(watermark: Watermark, steps: list[tuple[object, ...]]) -> list[int]:
    found = [watermark.ms]
    for name, *values in steps:
        getattr(watermark, str(name))(*values)
        found.append(watermark.ms)
    return found


@given(TIMES, TIMES, TIMES, st.lists(READ | SILENT))
def test_it_never_goes_back_and_is_the_highest_that_its_rules_allow(
    start: int, lateness: int, idle: int, steps: list[tuple[object, ...]]
) -> None:
    found = follow(Watermark(start, lateness, idle), steps)
    assert all(before <= after for before, after in pairwise(found))
    allowed = [start]
    for step in steps:
        match step:
            case ("read", int(newest), _, int(now)):
                allowed.append(min(newest, now) - lateness)
            case ("read", None, int(arrived), int(now)):
                allowed.append(min(arrived, now) - idle - lateness)
            case ("silent", int(until)):
                allowed.append(until - idle - lateness)
    assert found[-1] == max(allowed)


@given(TIMES, TIMES, TIMES, TIMES)
def test_an_event_ahead_of_the_clock_does_not_carry_the_watermark_there(
    start: int, lateness: int, ahead: int, now: int
) -> None:
    watermark = Watermark(start, lateness, 0)
    watermark.read(now + ahead, None, now)
    assert watermark.ms <= max(start, now)


@given(st.lists(TIMES, min_size=1), st.integers(0, 60_000), st.integers(0, 60_000))
def test_rows_that_keep_to_the_lateness_are_never_behind(times: list[int], lateness: int, idle: int) -> None:
    watermark = Watermark(0, lateness, idle)
    newest = 0
    for time in times:
        # An event at most `lateness` behind the newest before it.
        row = max(time, newest - lateness)
        assert watermark.ms <= max(0, row)
        newest = max(newest, row)
        watermark.read(row, None, 10**9)
