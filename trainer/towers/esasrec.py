"""SASRec with LiGR transformer layers: the tower of eSASRec.

Tikhonovich et al., "eSASRec: Enhancing Transformer-based Recommendations in a Modular Fashion", RecSys 2025 (arXiv
2508.06450), combine three modules: the shifted-sequence objective of SASRec, a sampled softmax, and the layers of LiGR
(Borisyuk et al., "From Features to Transformers: Redefining Ranking for Scalable Impact", arXiv 2502.03417). The
objective and the loss are the trainer's own (`trainer.loss`, `weir.trainer.negatives`); this tower provides the layers.

A layer is pre-norm, and a learned gate, computed from the unnormalised input, scales the output of each half::

    x <- x + sigmoid(W1 x) * attention(norm x)
    x <- x + sigmoid(W2 x) * swiglu(norm x)

The gates have biases and the feed-forward network has none, as in the authors' published code (RecTools). Positions,
the cold-start vector and the norm after the last layer are as in `SasRec`.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.towers.blocks import Attention
from weir.trainer.towers.sasrec import SasRec
from weir.trainer.towers.tower import History

__all__ = ["ESasRec"]


class SwiGlu(nn.Module):
    """A gated feed-forward network, normalisation first: Shazeer, "GLU Variants Improve Transformer", 2020."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        dimension, hidden = config.dimension, config.expansion * config.dimension
        self.norm = nn.LayerNorm(dimension)
        self.enter = nn.Linear(dimension, 2 * hidden, bias=False)
        self.leave = nn.Linear(hidden, dimension, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual to add to `x` (..., d)."""
        gate, value = self.enter(self.norm(x)).chunk(2, dim=-1)
        return cast(Tensor, self.dropout(self.leave(functional.silu(gate) * value)))


class LigrBlock(Attention):
    """A transformer block with gates on both residual connections; `query` attends to `memory`."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__(config)
        self.attention_gate = nn.Linear(config.dimension, config.dimension)
        self.feed_forward = SwiGlu(config)
        self.feed_forward_gate = nn.Linear(config.dimension, config.dimension)

    def forward(self, query: Tensor, memory: History, bias: Tensor) -> Tensor:
        """Return the updated `query` (B, Q, d), for `memory` of length L and the attention `bias`."""
        query = query + torch.sigmoid(self.attention_gate(query)) * self.attend(query, memory, bias)
        return cast(Tensor, query + torch.sigmoid(self.feed_forward_gate(query)) * self.feed_forward(query))


class ESasRec(SasRec):
    """User tower: `SasRec` with LiGR blocks."""

    block = LigrBlock
