"""Item-item matrices of simple methods (item-kNN and EASE), and scores of items by the history of a user.

Sources: Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", WWW 2019, equations 7 and 8 (EASE); Deshpande and
Karypis, "Item-Based Top-N Recommendation Algorithms", TOIS 2004 (item-kNN by cosine similarity).
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from weir.trainer.offline.data import Interactions, Ints
from weir.trainer.offline.splits import Past
from weir.trainer.ranking.ranker import Scores

__all__ = ["Catalogue", "ItemWeights", "Matrix", "ease", "gram", "item_knn", "recency"]


Matrix: TypeAlias = sparse.csr_matrix
ItemWeights: TypeAlias = npt.NDArray[np.float32]

_FORGOTTEN: Final = 1e-3
"""Items with less weight, relative to the newest one, are left out of a query."""


def recency(ages: Ints, half_life: float | None) -> npt.NDArray[np.float32]:
    """Return the weights of the items of a history, (m,); `ages` (m,) are the numbers of newer items.

    `half_life` is in items; None: all weights are 1. Order is used instead of time: every log has an order, and the
    items of one visit belong together, however long the pause before the visit was.
    """
    if half_life is None:
        return np.ones(len(ages), np.float32)
    return np.exp2(-ages / half_life).astype(np.float32)


class Catalogue:
    """Scores items by item-item matrices; knows the V items in training, among all I, and the user-item matrix.

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
            values = self.query(past, numbers.numpy(), half_life) @ weights
            full = torch.full((len(numbers), self.items), -torch.inf)
            dense = values.toarray() if sparse.issparse(values) else values
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


def gram(seen: Matrix) -> Matrix:
    """Return the number of users who have both items, (V, V), from the binary user-item matrix, (U, V)."""
    return sparse.csr_matrix(seen.T @ seen)


def ease(together: Matrix, l2: float) -> ItemWeights:
    """Return the weights B (V, V) that minimise ``|X - X B|^2 + l2 |B|^2`` with a diagonal of zeros.

    With P the inverse of ``X'X + l2 I``, B is ``-P / diag(P)``, column by column, and 0 on the diagonal.

    Parameters
    ----------
    together
        X'X of the binary user-item matrix X, (V, V). The weights take 4 V^2 bytes, twice that while computed.
    l2
        Regularisation, above 0: without it the matrix need not be invertible.
    """
    regular = torch.from_numpy(together.toarray().astype(np.float32))
    regular.diagonal().add_(l2)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(regular))
    weights = inverse.div_(-inverse.diagonal().clone())
    weights.fill_diagonal_(0)
    return weights.numpy()


def item_knn(together: Matrix, neighbours: int, shrinkage: float = 10.0) -> Matrix:
    """Return the similarities (V, V) of each item, a row, to its nearest neighbours; 0 for itself and all others.

    Parameters
    ----------
    together
        Number of users who have both items, (V, V).
    neighbours
        Most similar items kept per row; ties go to lower codes.
    shrinkage
        Added to the divisor, so that similarities supported by few users become small (Bell and Koren, 2007).
    """
    users = together.diagonal().astype(np.float64)
    pairs = sparse.coo_matrix(together)
    apart = pairs.row != pairs.col
    row, col, both = pairs.row[apart], pairs.col[apart], pairs.data[apart]
    similar = both / (np.sqrt(users[row] * users[col]) + shrinkage)
    order = np.lexsort((col, -similar, row))
    row, col, similar = row[order], col[order], similar[order]
    starts = np.searchsorted(row, np.arange(len(users)))
    kept = np.arange(len(row)) - starts[row] < neighbours
    return sparse.csr_matrix((similar[kept].astype(np.float32), (row[kept], col[kept])), shape=together.shape)
