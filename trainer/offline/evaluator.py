"""Evaluation of a model on test cases: histories of the users, rankings and metrics."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from weir.trainer.items.table import FIRST_ITEM, PADDING
from weir.trainer.offline.data import Interactions, Ints
from weir.trainer.offline.model import OfflineModel
from weir.trainer.offline.results import Decile, Stratum
from weir.trainer.offline.splits import Past, each_interaction, each_user, top_items_and_positives
from weir.trainer.offline.statistics import interval, popularity_deciles, popularity_strata
from weir.trainer.ranking import Cases, Ranked, means, per_case, rank, user_vectors
from weir.trainer.ranking.ranker import Scores
from weir.trainer.step.seeds import Purpose, derive

__all__ = ["Difference", "EvaluationResult", "Evaluator", "Protocol", "Rules"]

_USERS: Final = 1024
"""Users whose vectors are computed at a time."""
_COUNTED: Final = frozenset({"cases", "share"})
"""Figures of the cases, which do not depend on the ranking."""

Protocol = Literal["interaction", "user"]


@dataclass(frozen=True)
class Rules:
    """Evaluation protocol: how test cases are made, and which items are ranked for them.

    Attributes
    ----------
    protocol
        ``interaction``: a case per interaction, with all earlier interactions of its user as history; ``user``: a case
        per user, with all of the user's test interactions relevant, and the user's training interactions as history.
    cutoffs
        The values of k.
    filter_seen
        Leave a case's history out of its ranking.
    index_top
        Rank only this many most popular items and all test items; None: all items.
    """

    protocol: Protocol
    cutoffs: tuple[int, ...]
    filter_seen: bool = True
    index_top: int | None = None

    @property
    def headline(self) -> str:
        """The main metric: recall@20, or recall at the largest k if 20 is not a cutoff."""
        return f"recall@{self._headline_k}"

    @property
    def compared(self) -> tuple[str, str]:
        """The metrics in which peers are compared: the headline, and NDCG at the same k."""
        return self.headline, f"ndcg@{self._headline_k}"

    @property
    def _headline_k(self) -> int:
        """The k of the headline."""
        return 20 if 20 in self.cutoffs else max(self.cutoffs)


@dataclass(frozen=True)
class EvaluationResult:
    """All metrics of a model on the test cases: means, their 95 % intervals, and recall by item popularity."""

    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    strata: dict[str, Stratum]
    deciles: tuple[Decile, ...]


@dataclass(frozen=True)
class Difference:
    """Mean difference of a metric between two models on the same cases, with its 95 % interval over users.

    The interval is NaN with fewer than two users.
    """

    metric: str
    mean: float
    low: float
    high: float
    cases: int
    users: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the models differ: the interval lies on one side of 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Ranks items for test cases (C) with histories `past`; `counts` (I,) are the items' interactions in training."""

    rules: Rules
    cases: Cases
    past: Past
    counts: Ints
    user_rows: Tensor
    """Table rows of the cases' users, (C,), for towers with a vector per user; padding for unknown users."""

    @classmethod
    def of(
        cls, interactions: Interactions, train: Ints, held_out: Ints, rules: Rules, *, at_most: int | None = None
    ) -> "Evaluator":
        """Return an evaluator on the interactions `held_out` (n,), given the training part `train`, as row numbers.

        `at_most` limits the cases to a fixed random sample.
        """
        draw = np.random.default_rng(derive(0, Purpose.EVALUATION))
        units = held_out if rules.protocol == "interaction" else np.unique(interactions.users[held_out])
        units = np.sort(draw.permutation(units)[:at_most])
        if rules.protocol == "interaction":
            cases, past = each_interaction(interactions, units), Past.of_interactions(interactions, units)
        else:
            cases = each_user(interactions, held_out[np.isin(interactions.users[held_out], units)])
            past = Past.of_users(interactions, train, cases.users)
        items = len(interactions.item_ids)
        counts = np.bincount(interactions.items[train], minlength=items)
        user_rows = np.where(np.isin(cases.users, interactions.users[train]), FIRST_ITEM + items + cases.users, PADDING)
        return cls(rules, cases, past, counts, torch.from_numpy(user_rows))

    @property
    def new_share(self) -> float:
        """Share of relevant items that are not in training, and which no method can rank."""
        relevant = self.cases.relevant.values
        return float((self.counts[relevant] == 0).mean()) if len(relevant) else 0.0

    def test(self, model: OfflineModel) -> EvaluationResult:
        """Return all metrics of a model."""
        return self.result(self.rank(model))

    def validate(self, model: OfflineModel) -> dict[str, float]:
        """Return the means of a model's metrics only."""
        return means(self.rank(model), self.rules.cutoffs)

    def rank(self, model: OfflineModel) -> Ranked:
        """Return a model's rankings of all cases."""
        return self.rank_by(self._scores(model))

    def rank_by_popularity(self) -> Ranked:
        """Return the ranking by counts in training; apart from filtered items, it is the same for every case."""
        popularity = torch.from_numpy(self.counts).float()
        return self.rank_by(lambda numbers: popularity.repeat(len(numbers), 1))

    def difference(self, models: Sequence[Ranked], other: Ranked, metric: str | None = None) -> Difference:
        """Return the lead of a model over another one in `metric` (None: the headline), averaged over cases.

        Rankings of the same model with several seeds are averaged per case, so the interval covers only the choice
        of users.
        """
        name = metric or self.rules.headline
        k = [int(name.partition("@")[2])]
        apart = np.mean([per_case(ranked, k)[name] for ranked in models], 0) - per_case(other, k)[name]
        low, high = interval(apart, self.cases.users, generator=np.random.default_rng(0))
        return Difference(name, float(apart.mean()), low, high, len(apart), len(np.unique(self.cases.users)))

    def rank_by(self, scores: Scores) -> Ranked:
        """Return the rankings of all cases by scores (n, I) for case numbers (n,).

        Items that are not in training are never ranked: methods have only default scores for them.
        """
        rules, index, new = self.rules, None, torch.from_numpy(self.counts == 0)

        def in_training(numbers: Tensor) -> Tensor:
            values = scores(numbers)
            return values.masked_fill(new.to(values.device), -torch.inf)

        if rules.index_top is not None:
            index = top_items_and_positives(self.counts, rules.index_top, np.unique(self.cases.relevant.values))
        seen = self.past.take if rules.filter_seen else None
        return rank(self.cases, in_training, len(self.counts), depth=max(rules.cutoffs), seen=seen, index=index)

    def _scores(self, model: OfflineModel) -> Scores:
        """Return a function from case numbers (n,) to a model's scores (n, I)."""
        items, users = model.vectors()[1], self._users(model)
        return lambda numbers: users(numbers) @ items.T

    @torch.no_grad()
    def user_vectors(self, model: OfflineModel) -> Tensor:
        """Return the vectors of the users of all cases, normalised as in the search, (C, d)."""
        users, numbers = self._users(model), torch.arange(len(self.cases))
        return torch.cat([users(some) for some in torch.split(numbers, _USERS)])

    def _users(self, model: OfflineModel) -> Callable[[Tensor], Tensor]:
        """Return a function from case numbers (n,) to user vectors (n, d)."""
        model.tower.eval()
        vectors = model.vectors()[0]
        unknown = torch.ones(len(vectors), dtype=torch.bool)
        unknown[model.live.cpu()] = False
        if model.config.tower.knows_users:
            histories = self.user_rows[:, None]
        else:
            histories = self.past.histories(model.config.tower.history_length)
            histories = histories.masked_fill(unknown[histories], PADDING)

        def vectors_of(numbers: Tensor) -> Tensor:
            return user_vectors(model.tower, model.config.tower, vectors, histories[numbers].to(vectors.device))

        return vectors_of

    def result(self, *ranked: Ranked) -> EvaluationResult:
        """Return all metrics of rankings; for several seeds of one model, means over the seeds."""
        cutoffs, draw = self.rules.cutoffs, np.random.default_rng(0)
        by_case = [per_case(one, cutoffs) for one in ranked]
        intervals = {
            name: interval(np.mean([one[name] for one in by_case], 0), ranked[0].cases.users, generator=draw)
            for name in by_case[0]
        }
        strata = [popularity_strata(one, self.counts, cutoffs) for one in ranked]
        deciles = [popularity_deciles(one, self.counts, cutoffs) for one in ranked]
        return EvaluationResult(
            _mean([means(one, cutoffs) for one in ranked]),
            intervals,
            {name: Stratum.model_validate(_mean([one[name] for one in strata])) for name in strata[0]},
            tuple(Decile.model_validate(_mean(same)) for same in zip(*deciles, strict=True)),
        )


def _mean(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each figure; figures that are equal for all, such as counts, are copied exactly."""
    first = figures[0]
    if len(figures) == 1:
        return first
    return {name: first[name] if name in _COUNTED else float(np.mean([one[name] for one in figures])) for name in first}
