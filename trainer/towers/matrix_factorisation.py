"""A free vector per user: Koren, Bell and Volinsky, "Matrix Factorization Techniques", IEEE Computer 2009."""

from torch import Tensor

from weir.trainer.towers.tower import Tower

__all__ = ["MatrixFactorisation"]


class MatrixFactorisation(Tower):
    """User tower without parameters.

    Users have rows of their own in the table of embeddings, beside the items, and a user's "history" is one entry: that
    row. The tower returns that vector. A user who came after training has no row, which is why this tower is for
    comparisons on a closed set of users and not for a stream.
    """

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return user vectors (B, d): the last of `history` (B, L, d), zeros where `mask` (B, L) is False there."""
        return history[:, -1].masked_fill(~mask[:, -1:], 0)
