"""Matrix factorisation, a free vector per user: Koren, Bell and Volinsky, "Matrix Factorization Techniques", 2009."""

from torch import Tensor

from weir.trainer.towers.tower import Tower

__all__ = ["MatrixFactorisation"]


class MatrixFactorisation(Tower):
    """User tower without parameters.

    Users have their own rows in the embedding table, beside the items, and a user's "history" is one entry: that row.
    The tower returns that row's vector. Users who appear after training have no row: use this tower for comparisons on
    a closed set of users, not for a stream.
    """

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return user vectors (B, d): the last of `history` (B, L, d), or zeros where its `mask` (B, L) is False."""
        return history[:, -1].masked_fill(~mask[:, -1:], 0)
