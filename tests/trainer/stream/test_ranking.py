import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.stream.ranking import Totals, rank_of

scores = st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=6, max_size=6), min_size=1, max_size=8)


@given(scores, st.randoms(use_true_random=False))
def test_ranks_are_places_in_the_sorted_list(rows: list[list[float]], draw: object) -> None:
    targets = [draw.randrange(6) for _ in rows]  # type: ignore[attr-defined]
    excluded = [[draw.random() < 0.3 for _ in row] for row in rows]  # type: ignore[attr-defined]
    found = rank_of(torch.tensor(rows), torch.tensor(targets), torch.tensor(excluded))
    for row, target, banned, rank in zip(rows, targets, excluded, found.tolist(), strict=True):
        columns = [column for column in range(6) if column == target or not banned[column]]
        assert sorted(columns, key=lambda column: (-row[column], column)).index(target) + 1 == rank


def test_scores_that_are_no_numbers_are_misses() -> None:
    assert rank_of(torch.tensor([[float("nan"), 1.0], [float("inf"), 1.0]]), torch.tensor([0, 0])).tolist() == [3, 3]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=40))
def test_totals_are_the_definitions(ranks: list[tuple[int, int]]) -> None:
    totals = Totals((1, 5, 20))
    totals.add(torch.tensor([r for r, _ in ranks[:7]]), torch.tensor([p for _, p in ranks[:7]]))
    totals.add(torch.tensor([r for r, _ in ranks[7:]]).long(), torch.tensor([p for _, p in ranks[7:]]).long())
    means = totals.means(len(ranks))
    for place, name in ((0, ""), (1, "popularity_")):
        for k in (1, 5, 20):
            hits = [pair[place] <= k for pair in ranks]
            gains = [1 / math.log2(1 + pair[place]) if hit else 0 for pair, hit in zip(ranks, hits, strict=True)]
            assert means[f"{name}recall"][k] == pytest.approx(sum(hits) / len(ranks))
            assert means[f"{name}ndcg"][k] == pytest.approx(sum(gains) / len(ranks))


def test_novelty_is_the_mean_self_information_of_what_is_recommended() -> None:
    totals = Totals((1, 2))
    log_q, counts = np.log([0.5, 0.25, 0.25]), np.array([8.0, 4.0, 4.0])
    totals.add_recommended(torch.tensor([[0, 1], [2, 1]]), log_q, counts)
    means = totals.means(2)
    assert means["novelty_bits"] == {1: pytest.approx(1.5), 2: pytest.approx(1.75)}
    assert means["recommended_count"] == {1: pytest.approx(6), 2: pytest.approx(5)}
