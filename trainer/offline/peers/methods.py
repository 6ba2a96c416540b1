"""Candidate settings of each peer, for tuning."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor

from weir.trainer.offline.data import Interactions, InteractionsError, Ints
from weir.trainer.offline.evaluator import Evaluator
from weir.trainer.offline.peers.ease import ease, gram
from weir.trainer.offline.peers.item_knn import item_knn
from weir.trainer.offline.peers.queries import Catalogue, ItemWeights, Matrix
from weir.trainer.offline.peers.tuning import Candidate
from weir.trainer.ranking.ranker import Scores

__all__ = ["DECAY", "EASE", "ITEM_KNN", "L2", "LAST_DAYS", "NEIGHBOURS", "eases", "item_knns", "last_days"]

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


def last_days(interactions: Interactions, train: Ints) -> Iterator[Candidate]:
    """Yield popularity over the last days of training, for several numbers of days within its span.

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
    yield Candidate(name, settings, _by_history(catalogue, weights, None))
    for half_life in _HALF_LIVES if decay else ():
        more = settings | {"half_life_items": half_life}
        yield Candidate(name + DECAY, more, _by_history(catalogue, weights, half_life))


def _the_same(values: Tensor) -> Callable[[Evaluator], Scores]:
    return lambda _: lambda numbers: values.repeat(len(numbers), 1)


def _by_history(
    catalogue: Catalogue, weights: ItemWeights | Matrix, half_life: float | None
) -> Callable[[Evaluator], Scores]:
    return lambda cases: catalogue.scores(weights, cases.past, half_life)
