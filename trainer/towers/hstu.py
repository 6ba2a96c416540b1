"""HSTU: gated attention without a softmax and without a feed-forward network.

Zhai et al., "Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers for Generative
Recommendations", ICML 2024 (arXiv 2402.17152), equations 2 to 4. A layer is::

    u, v, q, k = split(silu(W1 norm(x)))
    x <- x + W2 (norm(sum over places j up to i of silu(q_i k_j + b(i - j)) v_j / L) * u)

Attention weights need not sum to 1, so a vector can encode how often an item occurred in the history, not only its
share. b is the learned bias by distance, one per layer, as in `Recency`; the paper's second bias, by time, is left out,
since a history has no times. L is `history_length`, whatever the history's own length.
"""

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.towers.blocks import ByDistance
from weir.trainer.towers.tower import Dense, History

__all__ = ["Hstu"]


class Layer(nn.Module):
    """One HSTU layer, with a residual connection; `query` attends to `memory`."""

    of_head: Tensor

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        dimension = config.dimension
        self.heads, self.places = config.heads, config.history_length
        self.norm = nn.LayerNorm(dimension)
        self.gate_query = nn.Linear(dimension, 2 * dimension)
        self.value_key = nn.Linear(dimension, 2 * dimension)
        self.bias = nn.Parameter(torch.zeros(config.history_length))
        self.attended_norm = nn.LayerNorm(dimension)
        self.out = nn.Linear(dimension, dimension)
        self.dropout = nn.Dropout(config.dropout)
        heads = torch.eye(config.heads).repeat_interleave(dimension // config.heads, 1)
        self.register_buffer("of_head", heads, persistent=False)

    def forward(self, query: Tensor, memory: History, age: Tensor, seen: Tensor) -> Tensor:
        """Return the updated `query` (B, Q, d), for `memory` of length L.

        `age` (Q, L) and `seen` (B, Q, L) are the result of `ByDistance.see`.
        """
        gate, asked = functional.silu(self.gate_query(self.norm(query))).chunk(2, dim=-1)
        normed, halves = memory.mapped(self.norm), (self.value_key.weight.chunk(2), self.value_key.bias.chunk(2))
        value, key = (normed.mapped(partial(_gated, weight=w, bias=b)) for w, b in zip(*halves, strict=True))
        attend = self._of_one if query.shape[1] == 1 else self._of_every
        attended = attend(asked, key, value, (self.bias[age], seen))
        return cast(Tensor, query + self.dropout(self.out(self.attended_norm(attended) * gate)))

    def _of_every(self, asked: Tensor, key: History, value: History, sees: tuple[Tensor, Tensor]) -> Tensor:
        """Return attention for Q query positions, (B, Q, d)."""
        logits = self._split(asked) @ self._split(key.every()).transpose(2, 3)
        return (self._weigh(logits, *sees) @ self._split(value.every())).transpose(1, 2).flatten(2)

    def _of_one(self, asked: Tensor, key: History, value: History, sees: tuple[Tensor, Tensor]) -> Tensor:
        """Return attention for a single query position; each head uses only its own dimensions."""
        logits = key.compare(asked * self.of_head)[:, :, None]
        read = value.mix(self._weigh(logits, *sees)[:, :, 0])
        return (read * self.of_head).sum(1, keepdim=True)

    def _weigh(self, logits: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
        """Return the attention weights: the SiLU of biased logits, 0 where not seen, divided by `history_length`."""
        return functional.silu(logits + bias).masked_fill(~seen[:, None], 0) / self.places

    def _split(self, x: Tensor) -> Tensor:
        """Turn (B, N, d) into (B, heads, N, d / heads)."""
        return x.view(*x.shape[:2], self.heads, x.shape[2] // self.heads).transpose(1, 2)


class Hstu(ByDistance):
    """HSTU user tower."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__(config)
        dimension = config.dimension
        self.cold_start = nn.Parameter(torch.randn(dimension) / dimension**0.5)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(dimension)
        self.dropout = nn.Dropout(config.dropout)

    def read(self, history: History, mask: Tensor) -> Tensor:
        """Return user vectors (B, d) as `forward` does, but from a `History`, which needs no (B, L, d) tensor."""
        read = history if self.reads_items else Dense(self._before_last(history.every(), mask))
        newest = self.norm(self.layers[-1](read.newest(), read, *self.see(mask, newest=True))[:, 0])
        return torch.where(mask.any(1, keepdim=True), newest, self.cold_start)

    def every_position(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return the user vectors (B, L, d) after each position: the result of `forward` for each prefix.

        Padding positions before the first item hold the cold-start vector.
        """
        x = self._before_last(history, mask)
        users = self.norm(self.layers[-1](x, Dense(x), *self.see(mask)))
        return torch.where(mask.cumsum(1)[..., None] > 0, users, self.cold_start)

    def _before_last(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return the input of the last layer at each position, (B, L, d)."""
        x = self.dropout(history)
        for layer in self.layers[:-1]:
            x = layer(x, Dense(x), *self.see(mask))
        return cast(Tensor, x)


def _gated(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return silu(weight x + bias)."""
    return functional.silu(functional.linear(x, weight, bias))
