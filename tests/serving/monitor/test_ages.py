import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.support import write_window
from tests.serving.users import Event
from weir.contracts import Store
from weir.serving.monitor.ages import UP_TO, AgeHits, ages_of, by_age, first_rows

T = 1_700_000_000_000

ages = st.floats(-1e6, 1e7)


@given(st.lists(st.tuples(ages, st.booleans())))
def test_every_answer_of_an_age_is_in_one_range(answers: list[tuple[float, bool]]) -> None:
    found = by_age("bundle", np.array([age for age, _ in answers]), {20: [float(hit) for _, hit in answers]})
    low = -1.0
    for up_to in (*UP_TO, None):
        high = np.inf if up_to is None else up_to
        inside = [hit for age, hit in answers if age >= 0 and low < age <= high]
        one = next((one for one in found if one.up_to == up_to), None)
        assert (one is None) == (not inside)
        if one is not None:
            assert (one.cases, one.hits) == (len(inside), {20: sum(inside)})
        low = high


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=20))
def test_the_first_event_of_a_user_is_the_earliest(events: list[tuple[int, int]]) -> None:
    users, times = (np.array([event[place] for event in events], np.int64) for place in (0, 1))
    found = first_rows(users, times).tolist()
    for user, row in zip(users.tolist(), found, strict=True):
        assert row == min((i for i in range(len(events)) if users[i] == user), key=lambda i: (times[i], i))


def test_bundles_are_as_old_as_their_newest_event_and_histories_as_the_window(store: Store) -> None:
    window = write_window(store, 0, [Event("ann", "a", T)], start_ms=T)
    hits = {"served": {20: [1.0, 0.0]}, "committed": {20: [0.0, 0.0]}}
    assert ages_of(window, [T + 61_000, T + 3_000], [T - 1_000, T - 57_000], hits) == (
        AgeHits(of="bundle", up_to=60, cases=1, hits={20: 0}),
        AgeHits(of="bundle", up_to=300, cases=1, hits={20: 1}),
        AgeHits(of="history", up_to=60, cases=1, hits={20: 0}),
        AgeHits(of="history", up_to=300, cases=1, hits={20: 0}),
    )


@pytest.mark.parametrize(("pane", "times"), [(1, [T]), (0, [])], ids=["late events", "no answer"])
def test_there_is_nothing_to_count(store: Store, pane: int, times: list[int]) -> None:
    window = write_window(store, 0, []).model_copy(update={"pane": pane})
    hits: dict[str, dict[int, list[float]]] = {"served": {20: [1.0] * len(times)}, "committed": {}}
    assert ages_of(window, times, times, hits) == ()
