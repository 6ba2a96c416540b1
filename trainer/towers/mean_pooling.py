"""The mean of the history, through a residual network: order does not matter, and the cost hardly grows with it."""

import torch
from torch import Tensor, nn

from weir.trainer.config import TowerConfig
from weir.trainer.towers.blocks import feed_forward
from weir.trainer.towers.history import Dense, History
from weir.trainer.towers.tower import Tower

__all__ = ["MeanPooling"]


class MeanPooling(Tower):
    """User tower."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__(config)
        self.cold_start = nn.Parameter(torch.randn(config.dimension) / config.dimension**0.5)
        self.layers = nn.ModuleList(feed_forward(config) for _ in range(config.layers))

    @property
    def reads_items(self) -> bool:
        """Their sum is all that it reads."""
        return True

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return user vectors (B, d) for item vectors (B, L, d) and `mask` (B, L), True for items.

        A user without any item gets the learned cold-start vector.
        """
        return self.read(Dense(history), mask)

    def read(self, history: History, mask: Tensor) -> Tensor:
        """Return what `forward` does, for histories of any kind."""
        present = mask.to(self.cold_start.dtype)
        return self._after(history.mix(present[:, None])[:, 0], present.sum(1, keepdim=True))

    def every_position(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return the user vectors (B, L, d) after each position: what `forward` returns for every prefix.

        Places of padding before the first item hold the cold-start vector.
        """
        present = mask.to(history.dtype)[..., None]
        return self._after((history * present).cumsum(1), present.cumsum(1))

    def _after(self, total: Tensor, count: Tensor) -> Tensor:
        """Return the vectors of users whose `count` (..., 1) items sum up to `total` (..., d)."""
        mean = total / count.clamp(min=1)
        for layer in self.layers:
            mean = mean + layer(mean)
        return torch.where(count > 0, mean, self.cold_start)
