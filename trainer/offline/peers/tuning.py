"""Tune a peer's settings on the validation part, by the same metric as a model's best step."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from weir.trainer.offline.evaluator import Evaluator
from weir.trainer.ranking import means
from weir.trainer.ranking.ranker import Scores

__all__ = ["Candidate", "best"]


@dataclass(frozen=True, eq=False)
class Candidate:
    """The peer `name` with one choice of `settings`, and its scores for the cases of an evaluator."""

    name: str
    settings: dict[str, float]
    scores: Callable[[Evaluator], Scores]


def best(candidates: Iterable[Candidate], validation: Evaluator) -> list[Candidate]:
    """Return for each name the candidate with the highest headline metric; the first on ties or without cases."""
    rules = validation.rules
    found = dict[str, Candidate]()
    highest = dict[str, float]()
    for candidate in candidates:
        value = -math.inf
        if len(validation.cases):
            value = means(validation.rank_by(candidate.scores(validation)), rules.cutoffs)[rules.headline]
        if candidate.name not in found or value > highest[candidate.name]:
            found[candidate.name], highest[candidate.name] = candidate, value
    return list(found.values())
