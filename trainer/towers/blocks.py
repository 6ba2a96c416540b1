"""Parts of the towers."""

from typing import cast

from torch import Tensor, nn
from torch.nn import functional

__all__ = ["AttentionBlock", "feed_forward"]


def feed_forward(dimension: int, dropout: float, expansion: int) -> nn.Sequential:
    """Return the two-layer network of a block, normalisation first; its hidden layer is `expansion` times as wide."""
    return nn.Sequential(
        nn.LayerNorm(dimension),
        nn.Linear(dimension, expansion * dimension),
        nn.GELU(),
        nn.Linear(expansion * dimension, dimension),
        nn.Dropout(dropout),
    )


class AttentionBlock(nn.Module):
    """A pre-norm transformer block in which `query` attends to `memory`; both enter unnormalised."""

    def __init__(self, dimension: int, heads: int, dropout: float, expansion: int) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(dimension)
        self.query = nn.Linear(dimension, dimension)
        self.key_value = nn.Linear(dimension, 2 * dimension)
        self.out = nn.Linear(dimension, dimension)
        self.feed_forward = feed_forward(dimension, dropout, expansion)

    def forward(self, query: Tensor, memory: Tensor, allowed: Tensor) -> Tensor:
        """Return the new values of `query` (B, Q, d), given `memory` (B, L, d) and `allowed` (B, Q, L) booleans."""
        key, value = self.key_value(self.norm(memory)).chunk(2, dim=-1)
        attended = functional.scaled_dot_product_attention(
            self._split(self.query(self.norm(query))), self._split(key), self._split(value), allowed[:, None]
        )
        joined = attended.transpose(1, 2).flatten(2)
        query = query + self.dropout(self.out(joined))
        return cast(Tensor, query + self.feed_forward(query))

    def _split(self, x: Tensor) -> Tensor:
        """Turn (B, N, d) into (B, heads, N, d / heads)."""
        return x.view(*x.shape[:2], self.heads, x.shape[2] // self.heads).transpose(1, 2)
