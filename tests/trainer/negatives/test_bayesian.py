import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from weir.trainer.negatives import PerRow
from weir.trainer.negatives.bayesian import bayesian_choice, true_negative

WEIGHT = 5.0


def by_hand(pos: float, scores: list[float], prior: list[float]) -> list[float]:
    """Return the risks of the paper, one candidate at a time."""
    risks = []
    for score, chance in zip(scores, prior, strict=True):
        share = sum(other <= score for other in scores) / (len(scores) + 1)
        unbias = (1 - share) * (1 - chance) / (1 - share - chance + 2 * share * chance)
        info = 1 - 1 / (1 + np.exp(-(pos - score)))
        risks.append((1 - unbias) * info - WEIGHT * unbias * info)
    return risks


@given(rows=st.integers(1, 4), candidates=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_the_choice_has_the_least_risk(*, rows: int, candidates: int, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    pos, scores = numbers.normal(size=rows), numbers.normal(size=(rows, candidates))
    prior, keep = numbers.uniform(0, 0.5, (rows, candidates)), numbers.random((rows, candidates)) < 0.7
    chosen = bayesian_choice(
        *map(torch.from_numpy, (pos, scores)),
        prior=torch.from_numpy(prior),
        weight=WEIGHT,
        keep=torch.from_numpy(keep),
    )
    for row in range(rows):
        kept = np.flatnonzero(keep[row])
        if not len(kept):
            assert int(chosen[row]) == 0
            continue
        risks = by_hand(float(pos[row]), scores[row, kept].tolist(), prior[row, kept].tolist())
        assert int(chosen[row]) in kept
        assert risks[kept.tolist().index(int(chosen[row]))] == pytest.approx(min(risks), rel=1e-9)


def test_frequencies_are_those_of_all_candidate_lists() -> None:
    """There is no closed form, so every one of the 6^3 lists is played through."""
    pos, scores = 0.5, torch.tensor([-1.0, -0.3, 0.0, 0.4, 0.9, 2.0], dtype=torch.float64)
    prior = torch.tensor([0.3, 0.01, 0.2, 0.05, 0.4, 0.1], dtype=torch.float64)
    wins: Counter[int] = Counter()
    for items in itertools.product(range(6), repeat=3):
        risks = by_hand(pos, scores[list(items)].tolist(), prior[list(items)].tolist())
        wins[items[int(np.argmin(np.round(risks, 12)))]] += 1
    density = torch.tensor([wins[item] / 6**3 for item in range(6)])

    rows = 40_000
    sampler, real = PerRow(torch.arange(6), 3), torch.ones(rows, dtype=torch.bool)
    items = sampler.draw(torch.zeros(rows, dtype=torch.int64), real, torch.Generator().manual_seed(0)).items
    chosen = bayesian_choice(torch.full((rows,), pos).double(), scores[items], prior=prior[items], weight=WEIGHT)
    share = torch.bincount(items.gather(1, chosen[:, None])[:, 0], minlength=6) / rows
    assert ((share - density).abs() <= 5 * (density * (1 - density) / rows).sqrt()).all()
    assert (density - 1 / 6).abs().max() > 0.05, "the choice is far from uniform"


def test_the_posterior_is_exact_in_double_precision() -> None:
    scores = torch.tensor([0.1, 0.7, -2.0], dtype=torch.float64)
    wanted = [(1 - f) * 0.9 / ((1 - f) * 0.9 + f * 0.1) for f in (2 / 4, 3 / 4, 1 / 4)]
    assert true_negative(scores, 0.1).tolist() == pytest.approx(wanted, rel=1e-14)


def test_a_popular_high_score_is_likely_a_positive() -> None:
    scores = torch.tensor([[-1.0, 0.0, 1.0, 2.0]])
    unbias = true_negative(scores, 0.2)[0]
    assert (unbias.diff() < 0).all()
    assert true_negative(scores, torch.tensor([[0.0, 0.5, 1.0, 0.2]]))[0, [0, 2]].tolist() == [1.0, 0.0]


def test_far_solved_rows_still_prefer_the_hardest() -> None:
    """Informativeness would underflow to 0 for all."""
    scores = torch.tensor([[-900.0, -500.0, -700.0, -600.0, -800.0]])
    assert bayesian_choice(torch.tensor([0.0]), scores, prior=0.01).tolist() == [1]


def test_several_lists_of_a_row_are_chosen_from_at_once() -> None:
    scores = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
    pos = torch.zeros(3, 4)
    whole = bayesian_choice(pos, scores, prior=0.1)
    single = [[int(bayesian_choice(pos[0, :1], scores[a, b][None], prior=0.1)) for b in range(4)] for a in range(3)]
    assert whole.tolist() == single


@pytest.mark.parametrize(
    ("pos", "scores", "settings", "message"),
    [
        (torch.zeros(2), torch.zeros(3, 4), {}, r"scores must have shape \(2, 'C'\) with C >= 1, got \(3, 4\)"),
        (torch.zeros(2), torch.zeros(2, 0), {}, "with C >= 1"),
        (torch.zeros(2), torch.zeros(2, 1), {"prior": 1.5}, r"prior must lie in \[0, 1\], got values from 1.5 to 1.5"),
        (torch.zeros(2), torch.zeros(2, 1), {"weight": -1.0}, "weight must be at least 0, got -1.0"),
    ],
)
def test_refuses(pos: Tensor, scores: Tensor, settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bayesian_choice(pos, scores, **({"prior": 0.1} | settings))
