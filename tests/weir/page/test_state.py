from hypothesis import given
from hypothesis import strategies as st

from tests.weir.up.damage import recall
from weir.page.state import K, Rates, recall_points
from weir.serving.monitor.newest import mean_recall

STEPS = st.lists(st.tuples(st.floats(0.1, 9), st.integers(0, 50)), min_size=1, max_size=40)


@given(STEPS)
def test_a_rate_is_the_rise_since_the_last_moment_that_is_15_seconds_ago_or_the_first(
    steps: list[tuple[float, int]],
) -> None:
    rates, moments = Rates(), [(0.0, 0)]
    assert rates.of("events", 0, 0.0) is None
    for seconds, rise in steps:
        now, count = moments[-1][0] + seconds, moments[-1][1] + rise
        moments.append((now, count))
        since = [moment for moment in moments[:-1] if moment[0] <= now - 15] or moments[:1]
        assert rates.of("events", count, now) == (count - since[-1][1]) / (now - since[-1][0])


def test_a_count_that_starts_anew_or_is_not_known_has_no_rate() -> None:
    rates = Rates()
    for count, now, expected in [(5, 0, None), (9, 2, 2.0), (1, 3, None), (4, 4, 3.0), (None, 5, None), (8, 6, None)]:
        assert rates.of("events", count, now) == expected
    assert rates.of("other", 8, 7) is None


@given(st.lists(st.tuples(st.none() | st.floats(0, 1), st.integers(1, 500)), max_size=20))
def test_each_window_has_the_mean_up_to_it(values: list[tuple[float | None, int]]) -> None:
    recalls = [recall(at, f"w{at:02}", value, examples) for at, (value, examples) in enumerate(values)]
    points = recall_points(recalls)
    assert list(points) == list(range(len(recalls)))
    for at, point in points.items():
        assert point["model"] == mean_recall(recalls[max(0, at - 4) : at + 1], "model", K)
