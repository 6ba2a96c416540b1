"""The mean of the history, through a residual network: order does not matter, and the cost hardly grows with it."""

import torch
from torch import Tensor, nn

from trainer.towers.blocks import feed_forward

__all__ = ["MeanPooling"]


class MeanPooling(nn.Module):
    """User tower."""

    def __init__(self, *, dimension: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.cold_start = nn.Parameter(torch.randn(dimension) / dimension**0.5)
        self.layers = nn.ModuleList(feed_forward(dimension, dropout) for _ in range(layers))

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return user vectors (B, d) for item vectors (B, L, d) and `mask` (B, L), True for items.

        A user without any item gets the learnt cold-start vector.
        """
        present = mask.to(history.dtype)
        mean = torch.einsum("bld,bl->bd", history, present) / present.sum(1, keepdim=True).clamp(min=1)
        for layer in self.layers:
            mean = mean + layer(mean)
        return torch.where(mask.any(1, keepdim=True), mean, self.cold_start)
