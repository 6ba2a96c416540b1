"""Recency tower: attention by distance, plus recency-weighted means of the history.

The next event of a user depends most on the latest ones. Every log has the number of items in between, few have
reliable times. `SasRec` has a positional embedding per place of the window and must train each of them with examples at
that place; on whole histories the newest place, which serves queries, gets one example in fifty. Here a position counts
only by its distance to the query position, so every position trains the serving one, and `every_position` equals
`forward` of every prefix:

- Attention adds a learned bias for each distance and head to its logits, initialised as the linear biases of Press et
  al., "Train Short, Test Long", ICLR 2022, and then trained freely.
- The output is added to two weighted means of the item vectors, whose weights by distance are learned as well and
  initially halve every few items. They represent a linear model with recency decay, which attention would otherwise
  have to learn from a small log.
"""

import math
from typing import Final, cast

import torch
from torch import Tensor, nn

from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.towers.blocks import AttentionBlock, ByDistance
from weir.trainer.towers.tower import Dense, History

__all__ = ["Recency"]

_OF_HEADS: Final = (7.0, 1.0)
"""Initial half-lives of the heads' attention, in items; heads take them in turn."""
_OF_MEANS: Final = (2.0, 10.0)
"""Initial half-lives of the means, in items."""


class Recency(ByDistance):
    """User tower with attention by distance and recency-weighted means."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__(config)
        dimension, length, means = config.dimension, config.history_length, len(_OF_MEANS)
        heads = [_OF_HEADS[head % len(_OF_HEADS)] for head in range(config.heads)]
        self.distances = nn.Parameter(_fading(heads, length))
        self.decays = nn.Parameter(_fading(_OF_MEANS, length))
        # Scaled to the length of the norm's output, for items of length 1.
        self.mix = nn.Parameter(torch.eye(dimension).repeat(1, means) * (dimension**0.5 / means))
        self.cold_start = nn.Parameter(torch.randn(dimension) / dimension**0.5)
        self.blocks = nn.ModuleList(AttentionBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(dimension)
        self.dropout = nn.Dropout(config.dropout)

    def read(self, history: History, mask: Tensor) -> Tensor:
        """Return user vectors (B, d) as `forward` does, but from a `History`, which needs no (B, L, d) tensor."""
        read = history if self.reads_items else Dense(self._before_last(history.every(), mask))
        newest = self.blocks[-1](read.newest(), read, self._weigh(self.distances, mask, newest=True))
        user = self.norm(newest) + self._means(history, self._weigh(self.decays, mask, newest=True))
        return torch.where(mask.any(1, keepdim=True), user[:, 0], self.cold_start)

    def every_position(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return the user vectors (B, L, d) after each position: the result of `forward` for each prefix.

        Padding positions before the first item hold the cold-start vector.
        """
        x, distances = self._before_last(history, mask), self._weigh(self.distances, mask)
        last = self.blocks[-1](x, Dense(x), distances)
        users = self.norm(last) + self._means(Dense(history), self._weigh(self.decays, mask))
        return torch.where(mask.cumsum(1)[..., None] > 0, users, self.cold_start)

    def _before_last(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return the input of the last block at each position, (B, L, d)."""
        x = self.dropout(history)
        for block in self.blocks[:-1]:
            x = block(x, Dense(x), self._weigh(self.distances, mask))
        return cast(Tensor, x)

    def _weigh(self, by_age: Tensor, mask: Tensor, *, newest: bool = False) -> Tensor:
        """Return logits (B, K, Q, L) for positions, given logits `by_age` (K, `history_length`); -inf where masked."""
        age, seen = self.see(mask, newest=newest)
        return torch.where(seen[:, None], by_age[:, age], -torch.inf)

    def _means(self, history: History, logits: Tensor) -> Tensor:
        """Return the mixed weighted means (B, Q, d) of histories of length L, with `logits` (B, K, Q, L) as weights."""
        means = history.mix(torch.softmax(logits, -1).flatten(1, 2)).view(*logits.shape[:3], -1)
        return cast(Tensor, self.dropout(means.transpose(1, 2).flatten(2)) @ self.mix.T)


def _fading(half_lives: tuple[float, ...] | list[float], length: int) -> Tensor:
    """Return logits (K, L) by age whose softmax weights halve every `half_lives` items."""
    return -math.log(2) * torch.arange(length) / torch.tensor(half_lives)[:, None]
