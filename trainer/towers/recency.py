"""Attention by distance, beside means of the history that forget: the newest items count most.

What a user does next depends on what they did last, and every log says how many items lie between, while few say how
much time. `SasRec` gives each place of the window a vector of its own and must learn each of them from examples at that
place; on whole histories the newest place, which answers queries, has one example in fifty. Here a place counts only by
its distance to the item it is read after, so that every position trains what answers, and `every_position` is `forward`
of every prefix:

- Attention adds a learned number for each distance and head to its logits, as the linear biases of Press et al., "Train
  Short, Test Long", ICLR 2022, but free to move away from the line after the first step.
- The result is added to two weighted means of the item vectors, whose weights by distance are learned as well and halve
  every few items at first. They carry what a linear model with recency decay knows, so that a small log need not teach
  it to the attention.
"""

import math
from typing import Final, cast

import torch
from torch import Tensor, nn

from weir.trainer.config import TowerConfig
from weir.trainer.towers.blocks import AttentionBlock
from weir.trainer.towers.by_distance import ByDistance
from weir.trainer.towers.history import Dense, History

__all__ = ["Recency"]

_OF_HEADS: Final = (7.0, 1.0)
"""Half-lives in items of the heads' attention before training, in turn."""
_OF_MEANS: Final = (2.0, 10.0)
"""Those of the means."""


class Recency(ByDistance):
    """User tower."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__(config)
        dimension, length, means = config.dimension, config.history_length, len(_OF_MEANS)
        heads = [_OF_HEADS[head % len(_OF_HEADS)] for head in range(config.heads)]
        self.distances = nn.Parameter(_fading(heads, length))
        self.decays = nn.Parameter(_fading(_OF_MEANS, length))
        # As long as what the norm returns, if items have length 1.
        self.mix = nn.Parameter(torch.eye(dimension).repeat(1, means) * (dimension**0.5 / means))
        self.cold_start = nn.Parameter(torch.randn(dimension) / dimension**0.5)
        self.blocks = nn.ModuleList(AttentionBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(dimension)
        self.dropout = nn.Dropout(config.dropout)

    def read(self, history: History, mask: Tensor) -> Tensor:
        """Return what `forward` does, for histories of any kind."""
        read = history if self.reads_items else Dense(self._before_last(history.every(), mask))
        newest = self.blocks[-1](read.newest(), read, self._weigh(self.distances, mask, newest=True))
        user = self.norm(newest) + self._means(history, self._weigh(self.decays, mask, newest=True))
        return torch.where(mask.any(1, keepdim=True), user[:, 0], self.cold_start)

    def every_position(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return the user vectors (B, L, d) after each position: what `forward` returns for every prefix.

        Places of padding before the first item hold the cold-start vector.
        """
        x, distances = self._before_last(history, mask), self._weigh(self.distances, mask)
        last = self.blocks[-1](x, Dense(x), distances)
        users = self.norm(last) + self._means(Dense(history), self._weigh(self.decays, mask))
        return torch.where(mask.cumsum(1)[..., None] > 0, users, self.cold_start)

    def _before_last(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return what the last block reads at each place, (B, L, d)."""
        x = self.dropout(history)
        for block in self.blocks[:-1]:
            x = block(x, Dense(x), self._weigh(self.distances, mask))
        return cast(Tensor, x)

    def _weigh(self, by_age: Tensor, mask: Tensor, *, newest: bool = False) -> Tensor:
        """Return logits (B, K, Q, L) of what a place sees, given those `by_age` (K, `history_length`), else -inf."""
        age, seen = self.see(mask, newest=newest)
        return torch.where(seen[:, None], by_age[:, age], -torch.inf)

    def _means(self, history: History, logits: Tensor) -> Tensor:
        """Return the mixture (B, Q, d) of the means of histories of length L, by `logits` (B, K, Q, L)."""
        means = history.mix(torch.softmax(logits, -1).flatten(1, 2)).view(*logits.shape[:3], -1)
        return cast(Tensor, self.dropout(means.transpose(1, 2).flatten(2)) @ self.mix.T)


def _fading(half_lives: tuple[float, ...] | list[float], length: int) -> Tensor:
    """Return logits (K, L) by age, whose weights halve every so many items."""
    return -math.log(2) * torch.arange(length) / torch.tensor(half_lives)[:, None]
