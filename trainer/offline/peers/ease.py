"""EASE: the linear autoencoder without self-similarity, in closed form.

Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", WWW 2019, equations 7 and 8.
"""

import numpy as np
import torch
from scipy import sparse

from weir.trainer.offline.peers.queries import ItemWeights, Matrix

__all__ = ["ease", "gram"]


def gram(seen: Matrix) -> Matrix:
    """Return how many users have both items, (V, V), given which user has which item, (U, V) of zeros and ones."""
    return sparse.csr_matrix(seen.T @ seen)


def ease(together: Matrix, l2: float) -> ItemWeights:
    """Return the weights B (V, V) that minimise ``|X - X B|^2 + l2 |B|^2`` with a diagonal of zeros.

    With P the inverse of ``X'X + l2 I``, B is ``-P / diag(P)``, column by column, and 0 on the diagonal.

    Parameters
    ----------
    together
        X'X of the users' items X, (V, V). The weights take 4 V^2 bytes, and twice as many while they are computed.
    l2
        Above 0: the matrix need not be invertible without it.
    """
    regular = torch.from_numpy(together.toarray().astype(np.float32))
    regular.diagonal().add_(l2)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(regular))
    weights = inverse.div_(-inverse.diagonal().clone())
    weights.fill_diagonal_(0)
    return weights.numpy()
