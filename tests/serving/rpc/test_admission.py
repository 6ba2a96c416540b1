import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.serving.errors import NoTimeLeftError
from weir.serving.rpc.admission import Admission, Entry


def under_way(calls: int, pace: float, limit: int = 1000) -> Admission:
    admission = Admission(limit, retry_after=0.1)
    for _ in range(calls):
        admission.enter()
    admission.pace = pace
    return admission


@given(st.integers(1, 500), st.floats(1e-5, 1), st.floats(0, 600))
def test_a_call_is_begun_if_those_before_it_take_half_of_its_time_at_most(calls: int, pace: float, left: float) -> None:
    assert under_way(calls, pace).has_time(left) == (2 * calls * pace <= left)


def test_what_nobody_is_ahead_of_is_begun_whatever_its_deadline() -> None:
    assert under_way(0, pace=10).has_time(0.001)
    assert not under_way(1, pace=10).has_time(0.001)


def test_calls_without_a_deadline_are_begun_up_to_the_limit() -> None:
    assert under_way(9, pace=1e9, limit=10).has_time(None)
    full = under_way(10, pace=1e-9, limit=10)
    assert not full.has_time(None)
    assert not full.has_time(1e9)
    with pytest.raises(NoTimeLeftError, match=r"try again in 0\.1 s"):
        full.require_time(None)


@given(st.integers(0, 500), st.floats(1e-5, 1))
def test_a_pause_is_short_beside_the_work_that_is_there(calls: int, pace: float) -> None:
    pause = under_way(calls, pace).pause
    assert 0 <= pause <= 0.005
    assert pause <= calls * pace / 8
    assert pause == 0.005 or pause == pytest.approx(calls * pace / 8)


def test_before_any_call_was_answered_a_burst_is_begun() -> None:
    assert under_way(900, Admission(1, 0.1).pace).has_time(0.05)


def ended(admission: Admission, ahead: int, took: float, *, waited: bool = True) -> None:
    """End a call that began so many seconds ago."""
    admission.enter()
    admission.leave(Entry(ahead, time.monotonic() - took), waited=waited)


@pytest.mark.parametrize("ahead", [0, 7, 63])
def test_the_pace_follows_the_median_of_seconds_per_call_under_way(ahead: int) -> None:
    random, admission = np.random.default_rng(0), Admission(1000, 0.1)
    each = random.lognormal(np.log(0.002), 0.5, 2000)
    each[::10] = 3.0  # a few that are expensive
    paces = []
    for took in each:
        ended(admission, ahead, took * (ahead + 1))
        paces.append(admission.pace)
    assert np.median(paces[500:]) == pytest.approx(np.median(each), rel=0.1)
    assert max(paces[500:]) < 2 * np.median(each)


def test_calls_that_did_not_wait_for_their_answer_say_nothing() -> None:
    admission = under_way(0, pace=0.001)
    ended(admission, 0, 5.0, waited=False)
    assert (admission.under_way, admission.pace) == (0, 0.001)
