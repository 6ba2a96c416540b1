"""Building blocks of the towers: the feed-forward network, multi-head attention and the transformer block."""

from abc import abstractmethod
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.towers.tower import Dense, History, Tower

__all__ = ["Attention", "AttentionBlock", "ByDistance", "feed_forward"]


def feed_forward(config: TowerConfig) -> nn.Sequential:
    """Return the pre-norm feed-forward network of a block: two layers, the hidden one `expansion` times as wide."""
    dimension, hidden = config.dimension, config.expansion * config.dimension
    return nn.Sequential(
        nn.LayerNorm(dimension),
        nn.Linear(dimension, hidden),
        nn.GELU(),
        nn.Linear(hidden, dimension),
        nn.Dropout(config.dropout),
    )


class Attention(nn.Module):
    """Multi-head attention of a pre-norm transformer block; `query` attends to `memory`."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        dimension = config.dimension
        self.heads = config.heads
        self.dropout = nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(dimension)
        self.query = nn.Linear(dimension, dimension)
        self.key_value = nn.Linear(dimension, 2 * dimension)
        self.out = nn.Linear(dimension, dimension)

    def attend(self, query: Tensor, memory: History, bias: Tensor) -> Tensor:
        """Return the attention output that is added to `query` (B, Q, d), for `memory` of length L, both unnormalised.

        `bias` (B, 1 or heads, Q, L) is added to the logits; as booleans it is a mask, True where attention is allowed.
        """
        asked, read = self._split(self.query(self.norm(query))), memory.mapped(self.norm)
        attended = (self._of_one if query.shape[1] == 1 else self._of_every)(asked, read, bias)
        return cast(Tensor, self.dropout(self.out(attended.transpose(1, 2).flatten(2))))

    def _of_every(self, asked: Tensor, memory: History, bias: Tensor) -> Tensor:
        """Return attention for Q query positions, (B, heads, Q, d / heads)."""
        key, value = map(self._split, self.key_value(memory.every()).chunk(2, dim=-1))
        return functional.scaled_dot_product_attention(asked, key, value, bias)

    def _of_one(self, asked: Tensor, memory: History, bias: Tensor) -> Tensor:
        """Return attention for a single query position, without a key and a value for each position of `memory`.

        q (K m + k) = (q K) m + const, and the softmax ignores the constant. The weights a sum to 1, so the sum of
        a (V m + v) is V applied to the sum of a m, plus v.
        """
        keys, values = self.key_value.weight.view(2, self.heads, -1, memory.shape[2])
        asked = torch.einsum("bhk,hkd->bhd", asked[:, :, 0], keys) * keys.shape[1] ** -0.5
        logits, bias = memory.compare(asked), bias[:, :, 0]
        logits = logits.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else logits + bias
        mean = memory.mix(torch.softmax(logits, -1))
        attended = torch.einsum("bhd,hkd->bhk", mean, values)
        return (attended + self.key_value.bias.chunk(2)[1].view(self.heads, -1))[:, :, None]

    def _split(self, x: Tensor) -> Tensor:
        """Turn (B, N, d) into (B, heads, N, d / heads)."""
        return x.view(*x.shape[:2], self.heads, x.shape[2] // self.heads).transpose(1, 2)


class AttentionBlock(Attention):
    """A pre-norm transformer block with plain residual connections."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__(config)
        self.feed_forward = feed_forward(config)

    def forward(self, query: Tensor, memory: History, bias: Tensor) -> Tensor:
        """Return the updated `query` (B, Q, d), for `memory` of length L and the attention `bias`."""
        query = query + self.attend(query, memory, bias)
        return cast(Tensor, query + self.feed_forward(query))


class ByDistance(Tower):
    """Base of towers that use distances instead of positional embeddings.

    Every position of a history therefore trains the newest position, which serves queries. The first layer maps an item
    the same way at all positions, and in the last layer only the newest position is a query.
    """

    age: Tensor
    itself: Tensor
    earlier: Tensor

    def __init__(self, config: TowerConfig) -> None:
        super().__init__(config)
        self._reads_items = config.layers == 1 and not config.dropout
        place = torch.arange(config.history_length)
        self.register_buffer("age", (place[:, None] - place).clamp(min=0), persistent=False)
        self.register_buffer("itself", torch.eye(len(place), dtype=torch.bool), persistent=False)
        self.register_buffer("earlier", torch.ones_like(self.itself).tril(-1), persistent=False)

    @property
    def reads_items(self) -> bool:
        """True with one layer and no dropout: then no position is changed before the last layer."""
        return self._reads_items

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return user vectors (B, d) for item vectors (B, L, d), oldest first, and `mask` (B, L), True for items.

        L may be shorter than `history_length`; a user without items gets the learned cold-start vector.
        """
        return self.read(Dense(history), mask)

    @abstractmethod
    def read(self, history: History, mask: Tensor) -> Tensor:
        """Return user vectors (B, d) as `forward` does, but from a `History`, which needs no (B, L, d) tensor."""

    def see(self, mask: Tensor, *, newest: bool = False) -> tuple[Tensor, Tensor]:
        """Return the distance back to each position (Q, L), and the attention mask (B, Q, L), given `mask` (B, L).

        Q is 1 with `newest` (the newest position only), else L. A position always sees itself, so that a padding row
        has something to attend to and cannot become NaN; other padding and later positions are masked.
        """
        length = mask.shape[1]
        first = length - 1 if newest else 0
        age, itself, earlier = (each[first:length, :length] for each in (self.age, self.itself, self.earlier))
        return age, itself | (earlier & mask[:, None])
