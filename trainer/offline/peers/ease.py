"""EASE: the linear autoencoder without self-similarity, in closed form.

Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", WWW 2019, equations 7 and 8.
"""

import numpy as np
import torch
from scipy import sparse

from weir.trainer.offline.peers.queries import ItemWeights, Matrix

__all__ = ["ease", "gram"]


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
