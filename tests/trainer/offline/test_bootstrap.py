import math

import numpy as np
import pytest
from scipy import stats

from weir.trainer.offline.bootstrap import _resampled, interval


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    held, cases_only = 0, 0
    for _ in range(300):
        sizes = draw.integers(1, 12, 80)
        users = np.repeat(np.arange(80), sizes)
        # A user's cases share a taste, whose mean is 0.5: they are far from independent.
        values = draw.beta(1, 1, 80)[users] + 0.1 * draw.standard_normal(len(users))
        low, high = interval(values, users, resamples=400, generator=draw)
        held += low <= 0.5 <= high
        low, high = interval(values, np.arange(len(users)), resamples=400, generator=draw)
        cases_only += low <= 0.5 <= high
    assert 0.9 <= held / 300 <= 0.99
    assert cases_only / 300 < 0.75


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_with_a_case_per_user_it_is_the_percentile_bootstrap_of_scipy(level: float) -> None:
    draw = np.random.default_rng(1)
    values = draw.exponential(size=150)
    found = interval(values, draw.permutation(150), level, 20_000, generator=draw)
    oracle = stats.bootstrap(
        (values,), np.mean, confidence_level=level, n_resamples=20_000, method="percentile", rng=draw, batch=1000
    ).confidence_interval
    assert found == pytest.approx((oracle.low, oracle.high), abs=0.04 * (oracle.high - oracle.low))


def test_a_mean_over_cases_is_resampled_not_one_over_users() -> None:
    users = np.array([0] * 9 + [1])
    means = _resampled(np.array([[9.0, 9], [0.0, 1]]), 4000, np.random.default_rng(0))
    # Two users drawn from two: both the first, both the second, or one of each.
    assert set(np.round(means, 6).tolist()) == {0.0, 0.9, 1.0}
    assert (means == 0.9).mean() == pytest.approx(0.5, abs=0.05)
    assert interval(np.array([1.0] * 9 + [0]), users, generator=np.random.default_rng(0)) == (0, 1)


def test_the_same_generator_gives_the_same_interval_in_any_order_of_cases() -> None:
    draw = np.random.default_rng(2)
    values, users, order = draw.integers(0, 2, 200).astype(float), draw.integers(30, size=200), draw.permutation(200)
    one = interval(values, users, generator=np.random.default_rng(7))
    assert one == pytest.approx(interval(values[order], users[order], generator=np.random.default_rng(7)))


def test_fewer_than_two_users_say_nothing_of_others() -> None:
    assert all(map(math.isnan, interval(np.ones(4), np.zeros(4, np.int64), generator=np.random.default_rng(0))))
