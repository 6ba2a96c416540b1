import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.ranking import MetricSums


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
    sums.add_recommended(torch.tensor([[0, 1], [2, 1]]), log_q, counts)
    means = sums.means(2)
    assert means["novelty_bits"] == {1: pytest.approx(1.5), 2: pytest.approx(1.75)}
    assert means["recommended_count"] == {1: pytest.approx(6), 2: pytest.approx(5)}
