"""Item-kNN: scores an item by its similarity to the items of the history.

Deshpande and Karypis, "Item-Based Top-N Recommendation Algorithms", TOIS 2004: cosine similarity, keeping only the
nearest neighbours of each item.
"""

import numpy as np
from scipy import sparse

from weir.trainer.offline.peers.queries import Matrix

__all__ = ["item_knn"]


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
