"""The watermark of a partition against what a plain reading of its rules allows."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from weir.pipelines.stream.consumers import UNASKED_SECONDS, Silence, Watermark

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


ASKED = st.lists(st.tuples(st.floats(0, 12), st.sampled_from(["answered", "broken"])), max_size=60)


@given(st.floats(0, 10), ASKED)
def test_silence_is_what_answers_in_an_unbroken_series_say(idle: float, steps: list[tuple[float, str]]) -> None:
    silence, now = Silence(idle), 1000.0
    series: list[float] = []
    for pause, what in steps:
        now += pause
        if what == "broken":
            silence.broken()
            series = []
            continue
        # An outage that is longer than what counts as idle starts it again.
        if series and now - series[-1] > max(idle, UNASKED_SECONDS):
            series = []
        series.append(now)
        assert silence.answered(now) == (series[-1] - series[0] >= idle)


def test_an_answer_from_before_an_outage_proves_nothing_of_it() -> None:
    silence = Silence(10)
    assert not silence.answered(0)
    # Asked at 5; the broker was away from then on, and its answer came at 65.
    assert not silence.answered(5)
    assert not silence.answered(65), "what producers have kept meanwhile may be on its way"
    assert [silence.answered(at) for at in (68, 71, 74, 75)] == [False, False, False, True]


def test_a_clock_that_is_set_back_proves_nothing() -> None:
    silence = Silence(10)
    assert not silence.answered(100)
    assert not silence.answered(50)
    assert not silence.answered(59)
    assert silence.answered(60)
