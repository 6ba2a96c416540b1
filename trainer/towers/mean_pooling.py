"""Mean pooling of the history, then a residual network: order is ignored, and cost hardly grows with the length."""

import torch
from torch import Tensor, nn

from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.towers.blocks import feed_forward
from weir.trainer.towers.tower import Dense, History, Tower

__all__ = ["MeanPooling"]


class MeanPooling(Tower):
    """User tower with mean pooling."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__(config)
        self.cold_start = nn.Parameter(torch.randn(config.dimension) / config.dimension**0.5)
        self.layers = nn.ModuleList(feed_forward(config) for _ in range(config.layers))

    @property
    def reads_items(self) -> bool:
        """True: the tower needs only the sum of the items."""
        return True

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return user vectors (B, d) for item vectors (B, L, d) and `mask` (B, L), True for items.

        A user without items gets the learned cold-start vector.
        """
        return self.read(Dense(history), mask)

    def read(self, history: History, mask: Tensor) -> Tensor:
        """Return user vectors (B, d) as `forward` does, but from a `History`, which needs no (B, L, d) tensor."""
        present = mask.to(self.cold_start.dtype)
        return self._after(history.mix(present[:, None])[:, 0], present.sum(1, keepdim=True))

    def every_position(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return the user vectors (B, L, d) after each position: the result of `forward` for each prefix.

        Padding positions before the first item hold the cold-start vector.
        """
        present = mask.to(history.dtype)[..., None]
        return self._after((history * present).cumsum(1), present.cumsum(1))

    def _after(self, total: Tensor, count: Tensor) -> Tensor:
        """Return the vectors of users from the sum `total` (..., d) and the number `count` (..., 1) of their items."""
        mean = total / count.clamp(min=1)
        for layer in self.layers:
            mean = mean + layer(mean)
        return torch.where(count > 0, mean, self.cold_start)
