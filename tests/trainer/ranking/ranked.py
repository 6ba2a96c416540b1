"""Random test cases, for the tests of rankings and metrics."""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from weir.trainer.ranking import Cases, Lists, Ranked, rank


def random_cases(draw: np.random.Generator, cases: int, items: int, most: int) -> Cases:
    """Return cases with 1 to `most` relevant items each."""
    relevant = [draw.choice(items, draw.integers(1, most + 1), replace=False) for _ in range(cases)]
    offsets = np.concatenate([[0], np.cumsum([len(own) for own in relevant])])
    return Cases(draw.integers(cases, size=cases), Lists(offsets, np.concatenate(relevant)))


def random_scores(draw: np.random.Generator, cases: int, items: int, *, ties: bool = False) -> Tensor:
    scores = draw.integers(-2, 3, (cases, items)) / 2 if ties else draw.standard_normal((cases, items))
    return torch.from_numpy(scores).float()


def ranked_at_random(seed: int, cases: int = 40, items: int = 60, most: int = 8, depth: int = 50) -> Ranked:
    draw = np.random.default_rng(seed)
    scores = random_scores(draw, cases, items)
    return rank(random_cases(draw, cases, items, most), lambda block: scores[block], items, depth=depth)


def lists(cases: Cases) -> list[list[int]]:
    """Return the relevant items of each case."""
    offsets = cases.relevant.offsets
    return [cases.relevant.values[a:b].tolist() for a, b in pairwise(offsets)]
