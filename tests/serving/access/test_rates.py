from hypothesis import given
from hypothesis import strategies as st

from weir.serving.access import rates
from weir.serving.access.rates import Rates


@given(
    st.floats(0.1, 50),
    st.integers(1, 20),
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 2)), max_size=60),
)
def test_a_caller_gets_its_burst_and_its_rate_whatever_others_do(
    per_second: float, burst: int, calls: list[tuple[str, float]]
) -> None:
    at = [0.0]
    both, alone = Rates(per_second, burst, lambda: at[0]), Rates(per_second, burst, lambda: at[0])
    taken: list[float] = []
    for caller, pause in calls:
        at[0] += pause
        waits = both.take(caller)
        if caller == "a":
            assert waits == alone.take("a")
            taken += [at[0]] if not waits else []
    # In any span, no more calls than the bucket holds and gains.
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + per_second * (taken[last] - taken[first]) + 1e-6


def test_who_waits_as_long_as_told_is_let_in() -> None:
    at = [0.0]
    limited = Rates(4, 2, lambda: at[0])
    assert [limited.take("a") for _ in range(3)] == [0, 0, 0.25]
    at[0] += 0.25
    assert limited.take("a") == 0


def test_memory_is_bounded() -> None:
    limited = Rates(1, 1)
    for number in range(rates._MOST_CALLERS + 100):
        limited.take(str(number))
    assert len(limited._buckets) == rates._MOST_CALLERS
