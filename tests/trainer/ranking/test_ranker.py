""""""

import math

import numpy as np
import pytest
import pytrec_eval
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torchmetrics.functional import retrieval

from tests.trainer.ranking.ranked import lists, random_cases, random_scores, ranked_at_random
from weir.trainer.items.table import PADDING
from weir.trainer.ranking import (
    Cases,
    Lists,
    MetricSums,
    Ranked,
    coverage,
    distinct,
    highest,
    means,
    ndcg,
    per_case,
    precision,
    rank,
    recall,
    user_vectors,
)
from weir.trainer.settings.trainer import TowerConfig


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 99))), st.lists(st.integers(0, 5), max_size=8))
def test_lists_give_back_what_was_grouped(pairs: list[tuple[int, int]], numbers: list[int]) -> None:
    keys, values = np.array(pairs, np.int64).reshape(-1, 2).T
    grouped = Lists.grouped(keys, values, 6)
    taken, place = grouped.take(np.array(numbers, np.int64))
    expected = [(at, value) for at, number in enumerate(numbers) for key, value in pairs if key == number]
    assert list(zip(place.tolist(), taken.tolist(), strict=True)) == expected
    assert len(grouped) == 6


CUTOFFS = (1, 5, 10, 30)
TREC = {"recall": "recall", "ndcg": "ndcg_cut", "precision": "P"}
TORCHMETRICS = {
    "recall": retrieval.retrieval_recall,
    "ndcg": retrieval.retrieval_normalized_dcg,
    "precision": retrieval.retrieval_precision,
}


@given(st.integers(0, 10_000), st.integers(1, 45))
def test_metrics_of_each_case_are_those_of_trec_eval(seed: int, most: int) -> None:
    ranked = ranked_at_random(seed, most=most)
    truth = {str(case): {str(item): 1 for item in own} for case, own in enumerate(lists(ranked.cases))}
    run = {str(case): {str(item): -float(at) for at, item in enumerate(row)} for case, row in enumerate(ranked.top)}
    wanted = {f"{name}.{','.join(map(str, CUTOFFS))}" for name in TREC.values()}
    oracle = pytrec_eval.RelevanceEvaluator(truth, wanted).evaluate(run)
    for name, values in per_case(ranked, CUTOFFS).items():
        kind, k = name.split("@")
        expected = [oracle[str(case)][f"{TREC[kind]}_{k}"] for case in range(len(ranked.cases))]
        np.testing.assert_allclose(values, expected, atol=1e-12)


@given(st.integers(0, 10_000), st.integers(1, 45))
def test_metrics_of_each_case_are_those_of_torchmetrics(seed: int, most: int) -> None:
    draw = np.random.default_rng(seed)
    scores, cases = random_scores(draw, 8, 60), random_cases(draw, 8, 60, most)
    relevant = torch.zeros(8, 60, dtype=torch.long)
    for case, own in enumerate(lists(cases)):
        relevant[case, own] = 1
    found = per_case(rank(cases, lambda block: scores[block], 60, depth=50), CUTOFFS)
    positive = scores.exp()  # that library takes what is not above 0 for not retrieved
    for name, values in found.items():
        kind, k = name.split("@")
        expected = [float(TORCHMETRICS[kind](*pair, top_k=int(k))) for pair in zip(positive, relevant, strict=True)]
        # That library computes in float32; all digits that weir prints are far above.
        np.testing.assert_allclose(values, expected, rtol=2e-6, atol=0)


def by_hand() -> Ranked:
    scores = torch.tensor([[9.0, 8, 7, 6, 5], [5.0, 6, 7, 8, 9]])
    cases = Cases(np.array([0, 1]), Lists(np.array([0, 3, 4]), np.array([0, 2, 4, 0])))
    return rank(cases, lambda block: scores[block], 5, depth=3)


def test_metrics_by_hand() -> None:
    ranked = by_hand()
    assert recall(ranked, 3).tolist() == [2 / 3, 0]
    assert precision(ranked, 2).tolist() == [1 / 2, 0]
    ideal = 1 + 1 / math.log2(3)
    # Three are relevant, but two places hold two: the ideal has two.
    assert ndcg(ranked, 2).tolist() == [pytest.approx(1 / ideal), 0]
    assert coverage(ranked, 1) == 2 / 5
    assert coverage(ranked, 3) == 1


def test_means_count_each_case_once() -> None:
    found = means(by_hand(), (1, 3))
    assert found["recall@3"] == pytest.approx(1 / 3)
    assert found["precision@1"] == 0.5
    assert found["coverage@1"] == 0.4
    assert set(found) == {f"{name}@{k}" for name in ("recall", "ndcg", "precision", "coverage") for k in (1, 3)}


def test_places_without_an_item_are_not_coverage() -> None:
    ranked = rank(Cases(np.array([0]), Lists(np.array([0, 1]), np.array([1]))), lambda _: torch.ones(1, 4), 4, depth=3,
                  seen=Lists(np.array([0, 3]), np.array([0, 2, 3])).take)  # fmt: skip
    assert ranked.top.tolist() == [[1, -1, -1]]
    assert coverage(ranked, 3) == 1 / 4


def test_without_cases_means_are_no_numbers() -> None:
    none = Cases(np.array([], np.int64), Lists(np.array([0]), np.array([], np.int64)))
    found = means(rank(none, lambda _: torch.ones(0, 4), 4, depth=3), (2,))
    assert math.isnan(found["recall@2"])
    assert found["coverage@2"] == 0


@pytest.mark.parametrize("k", [0, 4])
def test_cutoffs_beyond_the_depth_are_refused(k: int) -> None:
    for measure in (recall, ndcg, precision, coverage):
        with pytest.raises(ValueError, match=f"k is {k}; allowed are 1 to 3"):
            measure(by_hand(), k)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=40))
def test_sums_are_the_definitions(ranks: list[tuple[int, int]]) -> None:
    sums = MetricSums((1, 5, 20))
    sums.add(torch.tensor([r for r, _ in ranks[:7]]), torch.tensor([p for _, p in ranks[:7]]))
    sums.add(torch.tensor([r for r, _ in ranks[7:]]).long(), torch.tensor([p for _, p in ranks[7:]]).long())
    means = sums.means(len(ranks))
    for place, name in ((0, ""), (1, "popularity_")):
        for k in (1, 5, 20):
            hits = [pair[place] <= k for pair in ranks]
            gains = [1 / math.log2(1 + pair[place]) if hit else 0 for pair, hit in zip(ranks, hits, strict=True)]
            assert means[f"{name}recall"][k] == pytest.approx(sum(hits) / len(ranks))
            assert means[f"{name}ndcg"][k] == pytest.approx(sum(gains) / len(ranks))


def test_novelty_is_the_mean_self_information_of_what_is_recommended() -> None:
    sums = MetricSums((1, 2))
    log_q, counts = np.log([0.5, 0.25, 0.25]), np.array([8.0, 4.0, 4.0])
    best = np.array([[0, 1], [2, 1]])
    sums.add_recommended(log_q[best], counts[best])
    means = sums.means(2)
    assert means["novelty_bits"] == {1: pytest.approx(1.5), 2: pytest.approx(1.75)}
    assert means["recommended_count"] == {1: pytest.approx(6), 2: pytest.approx(5)}


seeds = st.integers(0, 10_000)


@given(seeds, st.integers(1, 5), st.integers(1, 2000), st.integers(1, 9), st.booleans())
def test_the_highest_are_those_of_a_sorted_list(seed: int, rows: int, columns: int, k: int, ties: bool) -> None:
    draw = np.random.default_rng(seed)
    scores = torch.from_numpy(draw.integers(0, 9, (rows, columns)) if ties else draw.normal(size=(rows, columns)))
    values, found = highest(scores.float(), k)
    assert values.tolist() == scores.float().sort(1, descending=True)[0][:, :k].tolist()
    assert scores.float().gather(1, found).tolist() == values.tolist()
    assert all(len(set(row)) == min(k, columns) for row in found.tolist())


@given(seeds, st.sampled_from([300, 2000]))
def test_the_highest_are_those_of_topk_where_some_are_no_numbers(seed: int, columns: int) -> None:
    draw = np.random.default_rng(seed)
    scores = torch.from_numpy(draw.choice([float("nan"), float("inf"), -float("inf"), 0.5, -2.0], (3, columns), p=[
        0.002, 0.002, 0.9, 0.046, 0.05]))  # fmt: skip
    torch.testing.assert_close(highest(scores, 5)[0], scores.topk(5)[0], rtol=0, atol=0, equal_nan=True)


@given(st.lists(st.lists(st.integers(-1, 4), min_size=6, max_size=6), min_size=1, max_size=4))
def test_distinct_columns_are_a_set(rows: list[list[int]]) -> None:
    for row, found in zip(rows, distinct(torch.tensor(rows)).tolist(), strict=True):
        assert sorted(column for column in found if column >= 0) == sorted(set(row) - {-1})
        assert len(found) == len(row)


def one_case(relevant: list[int]) -> Cases:
    return Cases(np.array([0]), Lists(np.array([0, len(relevant)]), np.array(relevant)))


@given(
    seed=seeds,
    ties=st.booleans(),
    hide=st.booleans(),
    restrict=st.booleans(),
    depth=st.sampled_from([1, 3, 12, 20]),
)
def test_ranks_and_tops_are_those_of_a_sorted_list(
    *, seed: int, ties: bool, hide: bool, restrict: bool, depth: int
) -> None:
    draw = np.random.default_rng(seed)
    cases = random_cases(draw, 9, 12, 4)
    scores = random_scores(draw, 9, 12, ties=ties)
    by_user = [draw.choice(12, draw.integers(0, 12), replace=False) for _ in range(9)]
    seen: list[list[int]] = [by_user[user].tolist() if hide else [] for user in cases.users]
    index = draw.permutation(12)[:7] if restrict else None
    hidden = Lists.grouped(np.repeat(np.arange(9), [len(own) for own in by_user]), np.concatenate(by_user), 9)
    ranked = rank(
        cases,
        lambda block: scores[block],
        12,
        depth=depth,
        seen=(lambda block: hidden.take(cases.users[block])) if hide else None,
        index=index,
        block_scores=int(draw.integers(1, 60)),
    )
    expected: list[int] = []
    for case, relevant in enumerate(lists(cases)):
        left = [i for i in ranked.index.tolist() if i in relevant or i not in seen[case]]
        order = sorted(left, key=lambda item: (-scores[case, item].item(), item))[:depth]
        assert ranked.top[case].tolist() == order + [-1] * (depth - len(order))
        expected += [order.index(item) + 1 if item in order else depth + 1 for item in relevant]
    assert ranked.ranks.tolist() == expected
    assert ranked.index.tolist() == (list(range(12)) if index is None else sorted(index.tolist()))


def test_equal_scores_go_by_code_whatever_the_sign_of_zero() -> None:
    scores = torch.tensor([[-0.0, 0.0, -1.0, 0.0, -0.0, -1.0]])
    ranked = rank(one_case([3, 4]), lambda block: scores[block], 6, depth=5)
    assert ranked.top.tolist() == [[0, 1, 3, 4, 2]]
    assert ranked.ranks.tolist() == [3, 4]


def test_scores_that_are_no_numbers_are_missed_and_never_recommended() -> None:
    scores = torch.tensor([[float("nan"), 1.0, float("inf"), -float("inf")]])
    ranked = rank(one_case([0, 1, 2, 3]), lambda block: scores[block], 4, depth=3)
    assert ranked.top.tolist() == [[1, -1, -1]]
    assert ranked.ranks.tolist() == [4, 1, 4, 4]


def test_the_scores_of_the_caller_are_left_alone() -> None:
    scores = torch.arange(4.0).expand(2, -1)
    cases = Cases(np.array([0, 1]), Lists(np.array([0, 1, 2]), np.array([0, 1])))
    ranked = rank(cases, lambda block: scores[block], 4, depth=2, seen=Lists(np.arange(3), np.array([3, 2])).take)
    assert scores.tolist() == [[0, 1, 2, 3]] * 2
    assert ranked.top.tolist() == [[2, 1], [3, 1]]


def test_blocks_hold_no_more_scores_than_allowed() -> None:
    blocks: list[list[int]] = []

    def scores(block: torch.Tensor) -> torch.Tensor:
        blocks.append(block.tolist())
        return torch.zeros(len(block), 5, requires_grad=True)

    cases = Cases(np.zeros(7, np.int64), Lists(np.arange(8), np.zeros(7, np.int64)))
    rank(cases, scores, 5, depth=1, block_scores=17)
    assert blocks == [[0, 1, 2], [3, 4, 5], [6]]


def test_scores_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scores of 1 cases have shape \(1, 3\); expected \(1, 4\)"):
        rank(one_case([0]), lambda block: torch.zeros(len(block), 3), 4, depth=1)


class Mean(nn.Module):
    def forward(self, history: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (history * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def test_users_are_what_the_tower_reads_without_padding_as_the_search_compares_them() -> None:
    vectors = torch.tensor([[9.0, 9.0], [0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    histories = torch.tensor([[PADDING, 2], [2, 3]])
    plain = user_vectors(Mean(), TowerConfig(normalised=False), vectors, histories)
    assert plain.tolist() == [[3, 0], [1.5, 2]]
    unit = user_vectors(Mean(), TowerConfig(), vectors, histories)
    torch.testing.assert_close(unit, torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
