"""HSTU: attention without a softmax, whose result is gated: no feed-forward network.

Zhai et al., "Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers for Generative
Recommendations", ICML 2024 (arXiv 2402.17152), equations 2 to 4. A layer is::

    u, v, q, k = split(silu(W1 norm(x)))
    x <- x + W2 (norm(sum over places j up to i of silu(q_i k_j + b(i - j)) v_j / L) * u)

Weights of attention need not add up to 1, so that a vector can say how often something was in the history, not only
what share it had. b is the learned bias by distance, one per layer, as in `Recency`; the paper's second one, by time,
is left out, since a history has no times. L is `history_length`, whatever the history's own length.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.config import TowerConfig
from trainer.towers.by_distance import ByDistance

__all__ = ["Hstu"]


class Layer(nn.Module):
    """One layer, with a residual connection; `query` attends to `memory`."""

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

    def forward(self, query: Tensor, memory: Tensor, age: Tensor, seen: Tensor) -> Tensor:
        """Return the new values of `query` (B, Q, d), given `memory` (B, L, d).

        `age` (Q, L) and `seen` (B, Q, L) are those of `ByDistance.see`.
        """
        gate, asked = functional.silu(self.gate_query(self.norm(query))).chunk(2, dim=-1)
        value, key = functional.silu(self.value_key(self.norm(memory))).chunk(2, dim=-1)
        logits = self._split(asked) @ self._split(key).transpose(2, 3) + self.bias[age]
        weights = functional.silu(logits).masked_fill(~seen[:, None], 0) / self.places
        attended = (weights @ self._split(value)).transpose(1, 2).flatten(2)
        return cast(Tensor, query + self.dropout(self.out(self.attended_norm(attended) * gate)))

    def _split(self, x: Tensor) -> Tensor:
        """Turn (B, N, d) into (B, heads, N, d / heads)."""
        return x.view(*x.shape[:2], self.heads, x.shape[2] // self.heads).transpose(1, 2)


class Hstu(ByDistance):
    """User tower."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__(config)
        dimension = config.dimension
        self.cold_start = nn.Parameter(torch.randn(dimension) / dimension**0.5)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(dimension)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return user vectors (B, d) for item vectors (B, L, d), oldest first, and `mask` (B, L), True for items.

        L may be shorter than `history_length`; a user without any item gets the learned cold-start vector.
        """
        x = self.dropout(history)
        for layer in self.layers[:-1]:
            x = layer(x, x, *self.see(mask))
        newest = self.norm(self.layers[-1](x[:, -1:], x, *self.see(mask, newest=True))[:, 0])
        return torch.where(mask.any(1, keepdim=True), newest, self.cold_start)

    def every_position(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return the user vectors (B, L, d) after each position: what `forward` returns for every prefix.

        Places of padding before the first item hold the cold-start vector.
        """
        x, seen = self.dropout(history), self.see(mask)
        for layer in self.layers:
            x = layer(x, x, *seen)
        return torch.where(mask.cumsum(1)[..., None] > 0, self.norm(x), self.cold_start)
