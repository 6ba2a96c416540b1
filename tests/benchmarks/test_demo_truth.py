"""The law that benchmarks take for the truth is what the generator of the demo draws from."""

import numpy as np
import pytest

from benchmarks.demo_truth import Truth
from weir.demo import generator

USERS, ITEMS, DAYS, DRAWS = 30, 400, 5, 40_000


@pytest.mark.parametrize("label", [-1, 3])
def test_the_generator_draws_from_it(label: int) -> None:
    truth, rng = Truth(4, USERS, ITEMS, DAYS), np.random.default_rng(5)
    user, day = 7, 2
    [found] = truth.preference(np.array([user]), np.array([label]), np.array([day]))
    assert found.sum() == pytest.approx(1)
    where = rng.random(DRAWS) if label >= 0 else np.ones(DRAWS)
    shares = np.repeat(truth.users.shares[[user]], DRAWS, 0)
    taste = truth.users.genres[user, generator._choose(rng, shares)]
    days = np.full(DRAWS, day)
    labels = generator._next_label(
        rng, truth.catalogue, generator._Step(where, np.full(DRAWS, max(label, 0)), taste, days)
    )
    items = labels * truth.size + generator._choose(rng, truth.catalogue.weight[days, labels])
    drawn = np.bincount(items, minlength=len(found)) / DRAWS
    # Five standard deviations of a frequency.
    assert (np.abs(drawn - found) <= 5 * np.sqrt(found * (1 - found) / DRAWS) + 1e-12).all()
