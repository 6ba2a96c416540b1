"""Sums of the metrics of ranked events, to be added over batches and ranks.

All metrics are means over events (macro: an event counts once, whoever caused it). One item is relevant per event, so
Recall@k is the share of events whose item is among the first k, and NDCG@k is the mean gain of those, 0 for the others;
the ideal ranking has the item first, at 1. An item that is not ranked is a miss.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.ranking.metrics import gain

__all__ = ["MetricSums"]

_NAMES: Final = ("recall", "ndcg", "popularity_recall", "popularity_ndcg", "novelty_bits", "recommended_count")
"""Rows of the sums."""


class MetricSums:
    """Sums over events of the model's and popularity's metrics, (6, cutoffs).

    Parameters
    ----------
    cutoffs
        The values of k.
    """

    def __init__(self, cutoffs: tuple[int, ...]) -> None:
        self.cutoffs = cutoffs
        self.sums = torch.zeros(len(_NAMES), len(cutoffs), dtype=torch.float64)

    def add(self, ranks: Tensor, popularity_ranks: Tensor) -> None:
        """Add events by the ranks (n,) of their items, in the model's and in popularity's order."""
        for row, found in ((0, ranks), (2, popularity_ranks)):
            gains = gain(found)
            for column, k in enumerate(self.cutoffs):
                hit = found <= k
                self.sums[row, column] += hit.sum().cpu()
                self.sums[row + 1, column] += gains[hit].sum().cpu()

    def add_recommended(self, top: Tensor, log_q: npt.NDArray[np.float64], counts: npt.NDArray[np.float64]) -> None:
        """Add what was recommended: columns `top` (n, max k), best first, with their log Q and counts by column."""
        index = top.cpu().numpy()
        for row, values in ((4, -log_q[index] / np.log(2)), (5, counts[index])):
            for column, k in enumerate(self.cutoffs):
                self.sums[row, column] += float(values[:, :k].mean(1).sum())

    def means(self, events: int) -> dict[str, Any]:
        """Return the metrics of an `Evaluation`, each by k."""
        values = (self.sums / events).tolist()
        return {name: dict(zip(self.cutoffs, row, strict=True)) for name, row in zip(_NAMES, values, strict=True)}
