import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.sketches import CountMinSketch, ExactCounter, FrequencyView, merge_fading

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


def test_a_thousand_half_lives_leave_nothing_and_break_nothing() -> None:
    view = FrequencyView(1)
    view.add(exact([1, 1]), 0)
    view.add(exact([2]), 10**9)
    np.testing.assert_allclose(view.counts(np.array([1, 2])), [0, 1], atol=1e-12)


def test_sketches_of_other_parameters_are_refused() -> None:
    view = FrequencyView(1)
    view.add(CountMinSketch(1 << 10).to_bytes(), 0)
    with pytest.raises(ValueError, match="width"):
        view.add(CountMinSketch(1 << 11).to_bytes(), 0)
    with pytest.raises(ValueError, match=r"."):
        view.add(b"no sketch at all", 0)


def windows_of(rates: list[dict[int, int]]) -> list[list[int]]:
    return [[key for key, count in rate.items() for _ in range(count)] for rate in rates]


def test_steady_items_are_counted_by_a_long_memory_and_changed_ones_by_a_short() -> None:
    lives = (2 * 3600.0, 100 * 3600.0)
    # Item 1 is steady, with noise; item 2 appears, and item 3 goes, half-way; all windows have 1000 events.
    noise = np.random.default_rng(0).integers(-30, 30, 40)
    rates = [
        {1: 300 + n, 2: 0 if hour < 30 else 400, 3: 400 if hour < 30 else 0, 4: 300 - n}
        for hour, n in enumerate(noise.tolist())
    ]
    bank, short, long = FrequencyView(lives), FrequencyView(lives[0]), FrequencyView(lives[1])
    for hour, keys in enumerate(windows_of(rates)):
        for view in (bank, short, long):
            view.add(exact(keys), hour * HOUR)
    asked = np.array([1, 2, 3, 4])
    shares = [view.counts(asked) / view.total for view in (bank, short, long)]
    np.testing.assert_allclose(shares[0][[0, 3]], shares[2][[0, 3]], rtol=1e-12)
    np.testing.assert_allclose(shares[0][[1, 2]], shares[1][[1, 2]], rtol=1e-12, atol=1e-15)
    assert shares[2][1] < 0.2, "the long memory alone is late"
    np.testing.assert_allclose(shares[0], [0.3, 0.4, 0, 0.3], atol=0.03)


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 9), max_size=60), st.integers(0, 50)), min_size=1, max_size=6),
    st.lists(st.floats(0.5, 100), min_size=2, max_size=3, unique=True),
)
def test_each_item_takes_the_longest_half_life_that_agrees_with_all_shorter(
    stream: list[tuple[list[int], int]], half_lives: list[float]
) -> None:
    lives = sorted(half_lives)
    view = FrequencyView(tuple(life * 3600 for life in lives))
    for keys, hour in stream:
        view.add(exact(keys), hour * HOUR)
    now = max(hour for _, hour in stream)
    weights = [[0.5 ** ((now - hour) / life) for _, hour in stream] for life in lives]
    sums = [sum(w * len(keys) for w, (keys, _) in zip(row, stream, strict=True)) for row in weights]
    if min(sums) == 0:
        return
    noises = [
        sum(w * w * len(keys) for w, (keys, _) in zip(row, stream, strict=True)) / total**2
        for row, total in zip(weights, sums, strict=True)
    ]
    for key in range(1, 10):
        rates = [
            sum(w * keys.count(key) for w, (keys, _) in zip(row, stream, strict=True)) / total
            for row, total in zip(weights, sums, strict=True)
        ]
        wanted, close_call = rates[0], False
        for longer in range(1, len(lives)):
            gaps = [abs(rates[longer] - rates[one]) for one in range(longer)]
            bounds = [
                1.5 * math.sqrt(max(rates[longer], rates[one]) * (noises[longer] + noises[one]))
                for one in range(longer)
            ]
            close_call |= any(abs(gap - bound) < 1e-9 for gap, bound in zip(gaps, bounds, strict=True) if gap)
            if all(gap <= bound for gap, bound in zip(gaps, bounds, strict=True)):
                wanted = rates[longer]
        if not close_call:
            np.testing.assert_allclose(view.counts(np.array([key]))[0], wanted * sums[-1], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("half_life", [3600.0, (3600.0, 7200.0, 90000.0)], ids=["one", "bank"])
def test_a_view_goes_on_from_its_state_bit_for_bit(half_life: float | tuple[float, ...]) -> None:
    view = FrequencyView(half_life)
    asked = np.arange(1, 9)
    for hour, keys in enumerate([[1, 1, 2], [2, 3, 3, 3], [1, 4]]):
        view.add(exact(keys), hour * HOUR)
    copy = FrequencyView(half_life, view.time_ms)
    copy.load_state_dict({name: one.copy() for name, one in view.state_dict().items()})
    for one in (view, copy):
        one.add(exact([5, 5, 1]), 4 * HOUR)
        one.add(exact([6]), HOUR)
    assert view.estimates(asked).tobytes() == copy.estimates(asked).tobytes()
    assert view.counts(asked).tobytes() == copy.counts(asked).tobytes()
    assert view.state_dict().keys() == copy.state_dict().keys()
    assert all(view.state_dict()[name].tobytes() == copy.state_dict()[name].tobytes() for name in view.state_dict())


def test_a_view_of_one_half_life_keeps_the_names_of_earlier_checkpoints() -> None:
    view = FrequencyView(3600)
    assert view.state_dict() == {}
    view.add(exact([1]), 0)
    assert list(view.state_dict()) == ["sketch"]


def test_before_the_first_window_nothing_has_been_counted() -> None:
    assert FrequencyView(1).counts(np.array([1, 2])).tolist() == [0, 0]
    assert FrequencyView(1).total == 0


def counted(key: int, times: int) -> ExactCounter:
    counter = ExactCounter()
    counter.update(np.full(times, key))
    return counter


@given(st.floats(-100, 100), st.floats(0.1, 100), st.integers(1, 9), st.integers(1, 9))
def test_the_older_side_has_halved_with_every_half_life(later: float, life: float, old: int, new: int) -> None:
    counts = counted(1, old)
    fading = merge_fading(counts, counted(2, new), later, life)
    assert fading == pytest.approx(2 ** (-abs(later) / life))
    expected = [old * fading, new] if later > 0 else [old, new * fading]
    np.testing.assert_allclose(counts.estimate(np.array([1, 2])), expected, atol=1e-6)


def test_ages_pass_without_a_fault() -> None:
    counts = counted(1, 5)
    merge_fading(counts, counted(2, 3), 1e9, 1.0)
    np.testing.assert_allclose(counts.estimate(np.array([1, 2])), [0, 3], atol=1e-6)


def test_what_differs_is_not_merged() -> None:
    with pytest.raises(ValueError, match="width"):
        merge_fading(CountMinSketch(16), CountMinSketch(32), 1.0, 1.0)
