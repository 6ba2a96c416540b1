"""Prequential evaluation: every window is a test before it is a lesson.

Each sampled positive is ranked against all items of the table, by the model and by popularity alone. All figures are
means over events (macro: an event counts once, whoever caused it). One item is relevant per event, so Recall@k is the
share of events whose item is among the first k, and NDCG@k is the mean of 1 / log2(1 + rank) over those, 0 for the
others; the ideal ranking has the item first, at 1. An item outside the table is a miss, for both rankings.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from contracts import Document, Store
from contracts.documents import write_document

__all__ = ["Evaluation", "Totals", "figures", "rank_of", "save"]


class Evaluation(Document):
    """``evaluations/<window>/<pane>.json``: how well the model foretold a window; every mapping is by k.

    `novelty_bits` is the mean self-information -log2 Q of the first k recommended items, and `recommended_count` their
    mean decayed count: correcting log Q moves both. Figures are absent where no event or no item was there to rank.
    """

    window: str
    sequence: int = Field(ge=0)
    step: int = Field(ge=0, description="steps learnt before")
    events: int = Field(ge=0, description="positive events evaluated")
    known: int = Field(ge=0, description="of these, events whose item was in the table")
    items: int = Field(ge=0, description="items ranked")
    seen_filtered: bool = Field(description="whether the user's recent items were left out of the rankings")
    recall: dict[int, float] = Field(default_factory=dict)
    ndcg: dict[int, float] = Field(default_factory=dict)
    popularity_recall: dict[int, float] = Field(default_factory=dict)
    popularity_ndcg: dict[int, float] = Field(default_factory=dict)
    novelty_bits: dict[int, float] = Field(default_factory=dict)
    recommended_count: dict[int, float] = Field(default_factory=dict)


def figures(evaluations: Iterable[Evaluation]) -> dict[str, float]:
    """Return means over events as ``recall@20`` and so on; empty where nothing has been evaluated."""
    counted = [evaluation for evaluation in evaluations if evaluation.recall]
    total = sum(evaluation.events for evaluation in counted)
    means: dict[str, float] = {}
    for name in ("recall", "ndcg", "popularity_recall", "popularity_ndcg", "novelty_bits"):
        for k in counted[0].recall if counted else ():
            means[f"{name}@{k}"] = sum(getattr(one, name)[k] * one.events for one in counted) / total
    return means


def save(store: Store, evaluation: Evaluation) -> None:
    """Write an evaluation; the same stream gives the same bytes."""
    write_document(store, f"evaluations/{evaluation.window}.json", evaluation)


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
