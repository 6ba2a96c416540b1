"""Ranks of held-out items among all items, and the metrics made of them.

Each sampled positive is ranked against all items of the table, by the model and by popularity alone. All figures are
means over events (macro: an event counts once, whoever caused it). One item is relevant per event, so Recall@k is the
share of events whose item is among the first k, and NDCG@k is the mean of 1 / log2(1 + rank) over those, 0 for the
others; the ideal ranking has the item first, at 1. An item outside the table is a miss, for both rankings.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Totals", "rank_of"]


def rank_of(scores: Tensor, target: Tensor, excluded: Tensor | None = None) -> Tensor:
    """Return the rank (n,) of each row's target column, from 1; ties go to the lower column.

    Parameters
    ----------
    scores
        (n, V). A target whose score is not finite ranks below everything.
    target
        Columns, (n,).
    excluded
        Booleans (n, V): columns that are left out of the ranking, other than the target.
    """
    own = scores.gather(1, target[:, None])
    earlier = torch.arange(scores.shape[1], device=scores.device) < target[:, None]
    above = (scores > own) | ((scores == own) & earlier)
    if excluded is not None:
        above &= ~excluded
    return torch.where(own[:, 0].isfinite(), above.sum(1) + 1, scores.shape[1] + 1)


class Totals:
    """Sums over events, to be added over batches and ranks.

    Parameters
    ----------
    cutoffs
        The values of k.
    """

    def __init__(self, cutoffs: tuple[int, ...]) -> None:
        self.cutoffs = cutoffs
        self.sums = torch.zeros(6, len(cutoffs), dtype=torch.float64)

    def add(self, ranks: Tensor, popularity_ranks: Tensor) -> None:
        """Add events by the ranks of their items."""
        for row, found in ((0, ranks), (2, popularity_ranks)):
            gain = 1 / torch.log2(found.double() + 1)
            for column, k in enumerate(self.cutoffs):
                hit = found <= k
                self.sums[row, column] += hit.sum().cpu()
                self.sums[row + 1, column] += gain[hit].sum().cpu()

    def add_recommended(self, top: Tensor, log_q: npt.NDArray[np.float64], counts: npt.NDArray[np.float64]) -> None:
        """Add what was recommended: columns `top` (n, max k), best first, with their log Q and counts by column."""
        index = top.cpu().numpy()
        for row, values in ((4, -log_q[index] / np.log(2)), (5, counts[index])):
            for column, k in enumerate(self.cutoffs):
                self.sums[row, column] += float(values[:, :k].mean(1).sum())

    def means(self, events: int) -> dict[str, Any]:
        """Return the fields of an `Evaluation`."""
        names = ("recall", "ndcg", "popularity_recall", "popularity_ndcg", "novelty_bits", "recommended_count")
        values = (self.sums / events).tolist()
        return {name: dict(zip(self.cutoffs, row, strict=True)) for name, row in zip(names, values, strict=True)}
