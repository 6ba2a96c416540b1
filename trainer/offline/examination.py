"""A model's test: its cases, the past that it may see of each, and what its answers are worth."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from trainer.items.table import FIRST_ITEM, PADDING
from trainer.offline.bootstrap import interval
from trainer.offline.data import Interactions, Ints
from trainer.offline.metrics import means, per_case
from trainer.offline.model import OfflineModel
from trainer.offline.past import Past
from trainer.offline.ranking import Cases, Ranked, each_interaction, each_user, rank, top_items_and_positives
from trainer.offline.results import Decile, Stratum
from trainer.offline.strata import popularity_deciles, popularity_strata
from trainer.step.seeds import Purpose, derive
from trainer.towers import project

__all__ = ["Examination", "Figures", "Protocol", "Rules"]

Protocol = Literal["interaction", "user"]


@dataclass(frozen=True)
class Rules:
    """How a test is held.

    Attributes
    ----------
    protocol
        A case per interaction, whose past is all that its user did before; or per user, with all her test interactions
        to be found, whose past is what she did in training.
    cutoffs
        The values of k.
    filter_seen
        Leave a case's past out of its ranking.
    index_top
        Rank only so many of the most popular items and all test items; None: all items.
    """

    protocol: Protocol
    cutoffs: tuple[int, ...]
    filter_seen: bool = True
    index_top: int | None = None


@dataclass(frozen=True)
class Figures:
    """What a test says of a model."""

    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    strata: dict[str, Stratum]
    deciles: tuple[Decile, ...]


@dataclass(frozen=True, eq=False)
class Examination:
    """C cases, each with its past; `counts` (I,) are the items' interactions in training."""

    rules: Rules
    cases: Cases
    past: Past
    counts: Ints
    user_rows: Tensor
    """Table rows of the cases' users, (C,), where users have rows; padding for those who are not known."""

    @classmethod
    def of(
        cls, interactions: Interactions, known: Ints, asked: Ints, rules: Rules, *, at_most: int | None = None
    ) -> "Examination":
        """Ask for the interactions numbered `asked` (n,), given those `known`; for `at_most` cases, a seeded choice."""
        draw = np.random.default_rng(derive(0, Purpose.EVALUATION))
        units = asked if rules.protocol == "interaction" else np.unique(interactions.users[asked])
        units = np.sort(draw.permutation(units)[:at_most])
        if rules.protocol == "interaction":
            cases, past = each_interaction(interactions, units), Past.of_interactions(interactions, units)
        else:
            cases = each_user(interactions, asked[np.isin(interactions.users[asked], units)])
            past = Past.of_users(interactions, known, cases.users)
        items = len(interactions.item_ids)
        counts = np.bincount(interactions.items[known], minlength=items)
        user_rows = np.where(np.isin(cases.users, interactions.users[known]), FIRST_ITEM + items + cases.users, PADDING)
        return cls(rules, cases, past, counts, torch.from_numpy(user_rows))

    def test(self, model: OfflineModel) -> Figures:
        """Return all figures of a model."""
        return self._figures(self._rank(self._scores(model)))

    def test_popularity(self) -> Figures:
        """Return the figures of ranking by the counts in training, the same for all."""
        popularity = torch.from_numpy(self.counts).float()
        return self._figures(self._rank(lambda numbers: popularity.repeat(len(numbers), 1)))

    def glance(self, model: OfflineModel) -> dict[str, float]:
        """Return the means of a model alone."""
        return means(self._rank(self._scores(model)), self.rules.cutoffs)

    def _rank(self, scores: Callable[[Tensor], Tensor]) -> Ranked:
        rules, index = self.rules, None
        if rules.index_top is not None:
            index = top_items_and_positives(self.counts, rules.index_top, np.unique(self.cases.relevant.values))
        seen = self.past.take if rules.filter_seen else None
        return rank(self.cases, scores, len(self.counts), depth=max(rules.cutoffs), seen=seen, index=index)

    def _scores(self, model: OfflineModel) -> Callable[[Tensor], Tensor]:
        """Return the scores of cases by number; items that training has not seen have none."""
        model.tower.eval()
        read, items = model.vectors()
        unknown = torch.ones(len(read), dtype=torch.bool)
        unknown[model.live] = False
        unseen = unknown[FIRST_ITEM : FIRST_ITEM + len(self.counts)]
        if model.config.tower.knows_users:
            histories = self.user_rows[:, None]
        else:
            histories = self.past.histories(model.config.tower.history_length)
            histories = histories.masked_fill(unknown[histories], PADDING)

        def scores(numbers: Tensor) -> Tensor:
            rows = histories[numbers]
            users = project(model.tower(read[rows], rows != PADDING), model.config.tower)
            return (users @ items.T).masked_fill_(unseen, -torch.inf)

        return scores

    def _figures(self, ranked: Ranked) -> Figures:
        cutoffs = self.rules.cutoffs
        draw = np.random.default_rng(0)
        return Figures(
            metrics=means(ranked, cutoffs),
            intervals={
                name: interval(values, ranked.cases.users, generator=draw)
                for name, values in per_case(ranked, cutoffs).items()
            },
            strata={
                name: Stratum.model_validate(figures)
                for name, figures in popularity_strata(ranked, self.counts, cutoffs).items()
            },
            deciles=tuple(
                Decile.model_validate(figures) for figures in popularity_deciles(ranked, self.counts, cutoffs)
            ),
        )
