import math

import numpy as np
import pytest
import pytrec_eval
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional import retrieval

from tests.trainer.ranking.ranked import lists, random_cases, random_scores, ranked_at_random
from weir.trainer.ranking import (
    Cases,
    Lists,
    MetricSums,
    Ranked,
    coverage,
    means,
    ndcg,
    per_case,
    precision,
    rank,
    recall,
)

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
