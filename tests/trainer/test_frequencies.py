import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sketches import CountMinSketch, ExactCounter
from trainer.frequencies import FrequencyView

HOUR = 3_600_000


def exact(keys: list[int]) -> bytes:
    counter = ExactCounter()
    counter.update(np.array(keys, np.int64))
    return counter.to_bytes()


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 9), max_size=30), st.integers(0, 50)), min_size=1, max_size=6),
    st.floats(0.5, 100),
)
def test_a_count_halves_with_every_half_life(stream: list[tuple[list[int], int]], half_life_hours: float) -> None:
    view = FrequencyView(half_life_hours * 3600)
    for keys, hour in stream:
        view.add(exact(keys), hour * HOUR)
    now = max(hour for _, hour in stream)
    asked = np.arange(1, 10)
    wanted = [sum(keys.count(key) * 0.5 ** ((now - hour) / half_life_hours) for keys, hour in stream) for key in asked]
    np.testing.assert_allclose(view.counts(asked), wanted, rtol=1e-9)
    assert view.time_ms == now * HOUR


def test_log_q_is_a_distribution_over_the_keys_asked_for() -> None:
    view = FrequencyView(3600)
    view.add(exact([1] * 6 + [2] * 3 + [3] + [4] * 90), 0)
    np.testing.assert_allclose(np.exp(view.log_q(np.array([1, 2, 3]))), [0.6, 0.3, 0.1], rtol=1e-9)
    assert view.log_q(np.array([1]))[0] < 0
    assert np.isfinite(view.log_q(np.array([1, 77]))).all()
    assert view.log_q(np.empty(0, np.int64)).shape == (0,)


def test_a_thousand_half_lives_leave_nothing_and_break_nothing() -> None:
    view = FrequencyView(1)
    view.add(exact([1, 1]), 0)
    view.add(exact([2]), 10**9)
    np.testing.assert_allclose(view.counts(np.array([1, 2])), [0, 1], atol=1e-12)
    assert np.isfinite(view.log_q(np.array([1, 2]))).all()


def test_sketches_of_other_parameters_are_refused() -> None:
    view = FrequencyView(1)
    view.add(CountMinSketch(1 << 10).to_bytes(), 0)
    with pytest.raises(ValueError, match="width"):
        view.add(CountMinSketch(1 << 11).to_bytes(), 0)
    with pytest.raises(ValueError, match=r"."):
        view.add(b"no sketch at all", 0)


def test_before_the_first_window_nothing_has_been_counted() -> None:
    assert FrequencyView(1).counts(np.array([1, 2])).tolist() == [0, 0]
