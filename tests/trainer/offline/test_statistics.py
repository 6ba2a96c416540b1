""""""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.trainer.ranking.ranked import lists, ranked_at_random
from weir.trainer.offline.statistics import _resampled, interval, popularity_deciles, popularity_strata
from weir.trainer.ranking import Cases, Lists, Ranked, recall


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


def hits_and_misses(items: list[int], ranks: list[int]) -> Ranked:
    cases = Cases(np.arange(len(items)), Lists(np.arange(len(items) + 1), np.array(items)))
    return Ranked(cases, np.array(ranks), np.zeros((len(items), 5), np.int32), np.arange(100))


def test_strata_by_hand() -> None:
    # Of 100 interactions items 2 and 0 make 70, item 1 the next 20, the others 10; item 5 was never seen.
    counts = np.array([30, 20, 40, 6, 4, 0])
    found = popularity_strata(hits_and_misses([2, 0, 1, 3, 5], [1, 6, 3, 2, 6]), counts, (1, 3))
    assert found["head"] == {"share": 0.4, "recall@1": 0.5, "recall@3": 0.5}
    assert found["torso"] == {"share": 0.2, "recall@1": 0, "recall@3": 1}
    assert found["tail"] == {"share": 0.4, "recall@1": 0, "recall@3": 0.5}


def test_a_border_that_falls_between_two_items_parts_them() -> None:
    found = popularity_strata(hits_and_misses([0, 1, 2], [1, 6, 6]), np.array([50, 30, 20]), (1,))
    assert [one["share"] for one in found.values()] == [pytest.approx(1 / 3)] * 3


def test_a_stratum_without_tests_has_no_recall() -> None:
    found = popularity_strata(hits_and_misses([0], [1]), np.array([6, 4]), (1,))
    assert found["tail"]["share"] == 0
    assert math.isnan(found["tail"]["recall@1"])


@given(st.integers(0, 10_000))
def test_with_one_relevant_item_the_groups_add_up_to_the_recall_of_all(seed: int) -> None:
    ranked = ranked_at_random(seed, most=1)
    counts = np.random.default_rng(seed).geometric(0.05, 60)
    for k in (5, 20):
        total = recall(ranked, k).mean()
        strata = [one for one in popularity_strata(ranked, counts, (k,)).values() if one["share"]]
        assert sum(one["share"] * one[f"recall@{k}"] for one in strata) == pytest.approx(total)
        deciles = [one for one in popularity_deciles(ranked, counts, (k,)) if one["cases"]]
        assert sum(one["cases"] * one[f"recall@{k}"] for one in deciles) / 40 == pytest.approx(total)


@given(st.integers(0, 10_000))
def test_with_many_a_case_is_asked_for_its_own_of_the_group(seed: int) -> None:
    ranked = ranked_at_random(seed)
    counts = np.arange(60, 0, -1)
    before = np.cumsum(counts) - counts
    head = set(np.flatnonzero(before < counts.sum() / 2).tolist())
    shares = [
        len(wanted & set(top[:20].tolist())) / len(wanted)
        for own, top in zip(lists(ranked.cases), ranked.top, strict=True)
        if (wanted := head & set(own))
    ]
    assert popularity_strata(ranked, counts, (20,))["head"]["recall@20"] == pytest.approx(np.mean(shares))


def test_deciles_hold_about_as_many_tests_each_most_popular_first() -> None:
    counts = np.arange(100)
    items = np.repeat(np.arange(100), 3)
    ranks = np.where(items >= 90, 1, 6)
    found = popularity_deciles(hits_and_misses(items.tolist(), ranks.tolist()), counts, (1,))
    assert [one["cases"] for one in found] == [30] * 10
    assert [one["recall@1"] for one in found] == [1] + [0] * 9


def test_an_item_stays_whole() -> None:
    found = popularity_deciles(hits_and_misses([0] * 50 + [1] * 50, [1] * 100), np.array([9, 1]), (1,))
    assert [one["cases"] for one in found] == [0, 0, 50, 0, 0, 0, 0, 50, 0, 0]
