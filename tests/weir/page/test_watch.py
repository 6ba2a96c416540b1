import math

from hypothesis import given
from hypothesis import strategies as st

from weir.page.watch import History

STEPS = st.lists(st.floats(1.0, 3.0), min_size=1, max_size=300)


@given(STEPS, st.integers(4, 40))
def test_however_long_it_lasts_there_are_few_points_and_they_reach_back_to_the_first(
    steps: list[float], limit: int
) -> None:
    history = History(limit)
    time = 0.0
    for step in steps:
        history.add(time, {"value": 2 * time})
        time += step
    columns = history.since(0)
    assert len(history) == len(columns["time"]) < limit
    assert columns["time"][0] == 0
    assert columns["value"] == [2 * at for at in history.times]
    assert sorted(set(history.times)) == history.times


@given(STEPS, st.integers(4, 40))
def test_who_takes_what_is_new_and_starts_anew_with_each_epoch_has_everything(steps: list[float], limit: int) -> None:
    history = History(limit)
    mine: list[float | None] = []
    epoch, time = history.epoch, 0.0
    for step in steps:
        history.add(time, {})
        time += step
        if history.epoch != epoch:
            epoch, mine = history.epoch, []
        mine += history.since(len(mine))["time"]
    assert mine == history.times


def test_points_are_taken_half_as_often_each_time_that_it_is_full() -> None:
    history = History(limit=8)
    for second in range(1000):
        history.add(float(second), {})
    gaps = {after - before for before, after in zip(history.times, history.times[1:], strict=False)}
    assert gaps == {2.0**history.epoch}
    # Just before it was full the last time, it reached back half as far.
    assert history.epoch == math.ceil(math.log2(1000 / 7))


def test_a_value_that_was_not_known_at_first_is_missing_there() -> None:
    history = History()
    history.add(0, {"a": 1.0})
    history.add(1, {"a": None, "b": 2.0})
    assert history.since(0) == {"time": [0, 1], "a": [1.0, None], "b": [None, 2.0]}
