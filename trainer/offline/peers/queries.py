"""Scores from a user's history by an item-item matrix, with optional recency weights."""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from weir.trainer.offline.cases import Past
from weir.trainer.offline.data import Interactions, Ints
from weir.trainer.ranking.ranker import Scores

__all__ = ["Catalogue", "ItemWeights", "Matrix", "recency"]

Matrix: TypeAlias = sparse.csr_matrix
ItemWeights: TypeAlias = npt.NDArray[np.float32]

_FORGOTTEN: Final = 1e-3
"""Items with less weight, relative to the newest one, are left out of a query."""


def recency(ages: Ints, half_life: float | None) -> npt.NDArray[np.float32]:
    """Return the weight of the items of a history, (m,), from the number of newer items, 0 for the newest (weight 1).

    Order is used instead of time: every log has it, and items of one visit belong together, however long the pause
    before it was. `half_life` is in items; None: all weights are 1.
    """
    if half_life is None:
        return np.ones(len(ages), np.float32)
    return np.exp2(-ages / half_life).astype(np.float32)


class Catalogue:
    """The V items in training, among all I, and the user-item matrix.

    Parameters
    ----------
    interactions, train
        All interactions, and the row numbers of the training part.
    """

    def __init__(self, interactions: Interactions, train: Ints) -> None:
        self.items = len(interactions.item_ids)
        self.known, columns = np.unique(interactions.items[train], return_inverse=True)
        self._column = np.full(self.items, -1)
        self._column[self.known] = np.arange(len(self.known))
        shape = (len(interactions.user_ids), len(self.known))
        ones = np.ones(len(train), np.float32)
        self.seen: Matrix = sparse.csr_matrix((ones, (interactions.users[train], columns)), shape=shape)
        """User-item matrix, (U, V): 1 for any number of interactions."""
        self.seen.data[:] = 1

    def __len__(self) -> int:
        return len(self.known)

    def scores(self, weights: ItemWeights | Matrix, past: Past, half_life: float | None) -> Scores:
        """Return a function from case numbers (n,) to scores (n, I), by an item-item matrix `weights` (V, V).

        Items that are not in training score -inf.
        """

        def scores(numbers: Tensor) -> Tensor:
            found = self.query(past, numbers.numpy(), half_life) @ weights
            full = torch.full((len(numbers), self.items), -torch.inf)
            dense = found.toarray() if sparse.issparse(found) else found
            full[:, torch.from_numpy(self.known)] = torch.from_numpy(dense)
            return full

        return scores

    def query(self, past: Past, cases: Ints, half_life: float | None) -> Matrix:
        """Return the weights of the items in the histories of `cases` (n,), (n, V); a repeated item counts once."""
        items, case = past.take(cases)
        ends = np.cumsum(np.bincount(case, minlength=len(cases)))
        weights = recency(ends[case] - 1 - np.arange(len(case)), half_life)
        columns = self._column[items]
        kept = (columns >= 0) & (weights >= _FORGOTTEN)
        # Reversed, so that `unique` keeps the newest occurrence of a repeated item.
        keys = (case * len(self) + columns)[kept][::-1]
        keys, newest = np.unique(keys, return_index=True)
        values = weights[kept][::-1][newest]
        return sparse.csr_matrix((values, (keys // len(self), keys % len(self))), shape=(len(cases), len(self)))
