from hypothesis import given
from hypothesis import strategies as st

from weir.pipelines.stream.consumers import UNASKED_SECONDS, Silence

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
