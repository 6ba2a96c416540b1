"""Contest of simple methods (peers) on the cases of one test, each tuned on the validation part of the same plan."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from weir.trainer.offline.data import Interactions, InteractionsError, Ints
from weir.trainer.offline.evaluator import Evaluator, Rules
from weir.trainer.offline.peers import Catalogue, ItemWeights, Matrix, ease, gram, item_knn
from weir.trainer.ranking import Ranked, means
from weir.trainer.ranking.ranker import Scores

__all__ = [
    "DECAY",
    "EASE",
    "ITEM_KNN",
    "L2",
    "LARGEST",
    "LAST_DAYS",
    "NEIGHBOURS",
    "POPULARITY",
    "Candidate",
    "Contest",
    "Peer",
    "PeerReport",
    "best",
    "eases",
    "item_knns",
    "last_days",
]


LAST_DAYS: Final = "popularity of the last days"
ITEM_KNN: Final = "item-kNN"
EASE: Final = "EASE"
DECAY: Final = " with recency decay"
"""Suffix of a method with recency decay in its query."""

_DAY_MS: Final = 86_400_000
# Without validation, the first value of each list is used.
_DAYS: Final = (7.0, 1.0, 3.0, 30.0, 90.0, 365.0, 1095.0)
NEIGHBOURS: Final = (50, 5, 10, 20, 200)
L2: Final = (250.0, 50.0, 10.0, 1250.0, 6250.0)
_HALF_LIVES: Final = (5.0, 30.0, 10.0, 2.0, 1.0)

LARGEST: Final = 12_500
"""Most items for an item-item matrix: 625 MB, and minutes on a core to invert it."""

POPULARITY: Final = "popularity"

PeerReport = Callable[[str], None]
"""Called with the name of each method before it starts."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """The peer `name` with one choice of `settings`, and its scores for the cases of an evaluator."""

    name: str
    settings: dict[str, float]
    scores: Callable[[Evaluator], Scores]


def best(candidates: Iterable[Candidate], validation: Evaluator) -> list[Candidate]:
    """Return for each name the candidate with the highest headline metric; the first on ties or without cases."""
    rules = validation.rules
    leaders = dict[str, Candidate]()
    highest = dict[str, float]()
    for candidate in candidates:
        value = -math.inf
        if len(validation.cases):
            value = means(validation.rank_by(candidate.scores(validation)), rules.cutoffs)[rules.headline]
        if candidate.name not in leaders or value > highest[candidate.name]:
            leaders[candidate.name], highest[candidate.name] = candidate, value
    return list(leaders.values())


def last_days(interactions: Interactions, train: Ints) -> Iterator[Candidate]:
    """Yield popularity over the last days of training, for several numbers of days.

    Raises
    ------
    InteractionsError
        Without timestamps.
    """
    if interactions.timestamps is None:
        raise InteractionsError(f"{interactions.source}: has no timestamps, which {LAST_DAYS} needs")
    times = interactions.timestamps[train]
    ages = (times.max() - times) / _DAY_MS
    for days in _DAYS:
        # Windows longer than the log would all give the same counts.
        if days == _DAYS[0] or days < ages.max():
            recent = interactions.items[train][ages <= days]
            counts = torch.from_numpy(np.bincount(recent, minlength=len(interactions.item_ids))).float()
            yield Candidate(LAST_DAYS, {"days": days}, _the_same(counts))


def item_knns(catalogue: Catalogue, neighbours: Iterable[int] = NEIGHBOURS, *, decay: bool) -> Iterator[Candidate]:
    """Yield item-kNN for several numbers of neighbours; with `decay`, also with half-lives of the query."""
    together = gram(catalogue.seen)
    for count in neighbours:
        yield from _queries(ITEM_KNN, {"neighbours": count}, catalogue, item_knn(together, count), decay=decay)


def eases(catalogue: Catalogue, penalties: Iterable[float] = L2, *, decay: bool) -> Iterator[Candidate]:
    """Yield EASE for several regularisations; with `decay`, also with half-lives of the query."""
    together = gram(catalogue.seen)
    for l2 in penalties:
        yield from _queries(EASE, {"l2": l2}, catalogue, ease(together, l2), decay=decay)


def _queries(
    name: str, settings: dict[str, float], catalogue: Catalogue, weights: ItemWeights | Matrix, *, decay: bool
) -> Iterator[Candidate]:
    """Yield a method's candidate without recency decay of the query and, with `decay`, one per half-life."""
    yield Candidate(name, settings, _by_history(catalogue, weights, None))
    for half_life in _HALF_LIVES if decay else ():
        more = settings | {"half_life_items": half_life}
        yield Candidate(name + DECAY, more, _by_history(catalogue, weights, half_life))


def _the_same(values: Tensor) -> Callable[[Evaluator], Scores]:
    """Return a function that gives every case the same scores, `values` (I,)."""
    return lambda _: lambda numbers: values.repeat(len(numbers), 1)


def _by_history(
    catalogue: Catalogue, weights: ItemWeights | Matrix, half_life: float | None
) -> Callable[[Evaluator], Scores]:
    """Return a function that scores items for the histories of cases by an item-item matrix."""
    return lambda cases: catalogue.scores(weights, cases.past, half_life)


@dataclass(frozen=True, eq=False)
class Peer:
    """A simple method: its name, its tuned settings, and its rankings of the test cases."""

    name: str
    settings: dict[str, float]
    ranked: Ranked


class Contest:
    """Tunes and ranks the peers for one training part; item-kNN and EASE only up to a number of items.

    Parameters
    ----------
    interactions, train
        All interactions, and the row numbers of the training part.
    rules
        Protocol of the test.
    largest
        Most items for an item-item matrix.
    """

    def __init__(self, interactions: Interactions, train: Ints, rules: Rules, largest: int = LARGEST) -> None:
        self.interactions, self.train, self.largest = interactions, train, largest
        self.catalogue = Catalogue(interactions, train)
        # A random split has no time order, so recency decay is meaningless.
        self.decay = rules.protocol == "interaction"

    @property
    def left_out(self) -> dict[str, str]:
        """Peers that cannot run, each with the reason."""
        reasons = {}
        if self.interactions.timestamps is None:
            reasons[LAST_DAYS] = "the log has no times"
        items = len(self.catalogue)
        for method in (ITEM_KNN, EASE):
            if items > self.largest:
                why = f"{items:,} items in training; a matrix of items by items is made of at most {self.largest:,}"
                reasons |= {method: why, method + DECAY: why}
            elif not self.decay:
                reasons[method + DECAY] = "a random split has no order of time"
        return reasons

    def run(self, validation: Evaluator, test: Evaluator, report: PeerReport | None = None) -> list[Peer]:
        """Tune every available peer on validation, and rank the test cases with it; popularity comes first."""
        peers = [Peer(POPULARITY, {}, test.rank_by_popularity())]
        for name, candidates in self._methods():
            if report:
                report(name)
            chosen = best(candidates, validation)
            peers += [Peer(peer.name, peer.settings, test.rank_by(peer.scores(test))) for peer in chosen]
        return peers

    def _methods(self) -> Iterator[tuple[str, Iterator[Candidate]]]:
        """Yield the name and the candidates of each available method."""
        absent = self.left_out
        if LAST_DAYS not in absent:
            yield LAST_DAYS, last_days(self.interactions, self.train)
        if ITEM_KNN not in absent:
            yield ITEM_KNN, item_knns(self.catalogue, decay=self.decay)
        if EASE not in absent:
            yield EASE, eases(self.catalogue, decay=self.decay)
