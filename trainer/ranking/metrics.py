"""Recall, NDCG and precision per test case, their means, and their sums over batches and ranks.

Means are macro over cases: each case counts once. With a case per interaction, a user with ten test interactions has
ten times the weight of a user with one; with a case per user, all users weigh the same.
"""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.trainer.ranking.ranker import Ranked

__all__ = [
    "NAMES",
    "Floats",
    "MetricSums",
    "coverage",
    "gain",
    "hits",
    "means",
    "ndcg",
    "per_case",
    "precision",
    "recall",
]

Floats = npt.NDArray[np.float64]
NAMES: Final = ("recall", "ndcg", "precision", "coverage")
"""Metrics in `means`, each followed by ``@k``."""
_SUMMED: Final = ("recall", "ndcg", "popularity_recall", "popularity_ndcg", "novelty_bits", "recommended_count")
"""Rows of `MetricSums`."""


def gain(ranks: Tensor) -> Tensor:
    """Return the discounted gain 1 / log2(1 + rank) for ranks from 1, (n,), float64."""
    return 1 / torch.log2(ranks.double() + 1)


def recall(ranked: Ranked, k: int) -> Floats:
    """Return the share of each case's relevant items that are among the first k, (C,)."""
    return _sum_by_case(ranked, hits(ranked, k)) / ranked.cases.relevant.lengths


def precision(ranked: Ranked, k: int) -> Floats:
    """Return the share of the first k items that are relevant, (C,); the divisor is always k."""
    return _sum_by_case(ranked, hits(ranked, k)) / k


def ndcg(ranked: Ranked, k: int) -> Floats:
    """Return NDCG@k, (C,): the discounted gains of relevant items among the first k, divided by the ideal sum.

    The ideal ranking starts with min(k, relevant) relevant items; with one relevant item the ideal sum is 1.

    Source: Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques", 2002, with gains 0 and 1.
    """
    gains = hits(ranked, k) * gain(torch.from_numpy(ranked.ranks)).numpy()
    ideal: Floats = np.concatenate([[0.0], np.cumsum(gain(torch.arange(1, k + 1)).numpy())])
    possible = np.minimum(ranked.cases.relevant.lengths, k)
    return _sum_by_case(ranked, gains) / ideal[possible]


def coverage(ranked: Ranked, k: int) -> float:
    """Return the share of the ranked items that appear among the first k of any case."""
    hits(ranked, k)
    shown = np.unique(ranked.top[:, :k])
    return float((shown >= 0).sum() / len(ranked.index))


def per_case(ranked: Ranked, cutoffs: Iterable[int]) -> dict[str, Floats]:
    """Return ``recall@k``, ``ndcg@k`` and ``precision@k`` of each case, (C,), for every k."""
    measures = {"recall": recall, "ndcg": ndcg, "precision": precision}
    return {f"{name}@{k}": measure(ranked, k) for name, measure in measures.items() for k in cutoffs}


def means(ranked: Ranked, cutoffs: Iterable[int]) -> dict[str, float]:
    """Return the means of `per_case` over cases, and ``coverage@k``; NaN without cases."""
    cutoffs = tuple(cutoffs)
    averages = {
        name: float(values.mean()) if len(values) else np.nan for name, values in per_case(ranked, cutoffs).items()
    }
    return averages | {f"coverage@{k}": coverage(ranked, k) for k in cutoffs}


def hits(ranked: Ranked, k: int) -> npt.NDArray[np.bool_]:
    """Return whether each relevant item is among the first k, (R,); raises `ValueError` for k above the depth."""
    if not 1 <= k <= ranked.depth:
        raise ValueError(f"k is {k}; allowed are 1 to {ranked.depth}, the depth of the ranking: rank deeper")
    return ranked.ranks <= k


def _sum_by_case(ranked: Ranked, values: npt.NDArray[Any]) -> Floats:
    """Sum the values of relevant items, (R,), by case, (C,)."""
    sums = np.bincount(ranked.cases.relevant.list_numbers, values, minlength=len(ranked.cases))
    return sums.astype(np.float64, copy=False)


class MetricSums:
    """Sums over events of the metrics of model and popularity, (6, cutoffs), which add up over batches and ranks.

    All metrics are means over events: each event counts once, whatever its user. One item is relevant per event, so
    Recall@k is the share of events with the item among the first k, and NDCG@k is the mean gain, 0 beyond k; the ideal
    ranking has the item at rank 1. An item that is not ranked is a miss.

    Parameters
    ----------
    cutoffs
        The values of k.
    """

    def __init__(self, cutoffs: tuple[int, ...]) -> None:
        self.cutoffs = cutoffs
        self.sums = torch.zeros(len(_SUMMED), len(cutoffs), dtype=torch.float64)

    def add(self, ranks: Tensor, popularity_ranks: Tensor) -> None:
        """Add events by the ranks (n,) of their items in the model's and the popularity ranking."""
        for row, places in ((0, ranks), (2, popularity_ranks)):
            gains = gain(places)
            for column, k in enumerate(self.cutoffs):
                hit = places <= k
                self.sums[row, column] += hit.sum().cpu()
                self.sums[row + 1, column] += gains[hit].sum().cpu()

    def add_recommended(self, log_q: npt.NDArray[np.float64], counts: npt.NDArray[np.float64]) -> None:
        """Add recommendations: log Q and counts of the best items, best first, both (n, max k)."""
        for row, values in ((4, -log_q / np.log(2)), (5, counts)):
            for column, k in enumerate(self.cutoffs):
                self.sums[row, column] += float(values[:, :k].mean(1).sum())

    def means(self, events: int) -> dict[str, Any]:
        """Return the metrics for an `Evaluation`, each by k."""
        values = (self.sums / events).tolist()
        return {name: dict(zip(self.cutoffs, row, strict=True)) for name, row in zip(_SUMMED, values, strict=True)}
