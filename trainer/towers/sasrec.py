"""SASRec, causal self-attention: Kang and McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018.

The stream brings one positive per example, so `SasRec.forward` reads the newest position only. The last block
therefore computes that position alone, which gives the same vector and with one layer saves nearly all of the work.
Training on whole histories has a positive per position, as in the paper: `SasRec.every_position` returns
the vectors at all positions.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.towers.blocks import Attention, AttentionBlock
from weir.trainer.towers.tower import Dense, Tower

__all__ = ["SasRec"]


class SasRec(Tower):
    """User tower; histories are padded on the left, so positions are counted back from the newest item."""

    itself: Tensor
    earlier: Tensor

    block: ClassVar[type[Attention]] = AttentionBlock

    def __init__(self, config: TowerConfig) -> None:
        super().__init__(config)
        dimension, length = config.dimension, config.history_length
        self.positions = nn.Parameter(torch.randn(length, dimension) * 0.02)
        self.cold_start = nn.Parameter(torch.randn(dimension) / dimension**0.5)
        self.blocks = nn.ModuleList(self.block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(dimension)
        self.dropout = nn.Dropout(config.dropout)
        square = torch.ones(length, length, dtype=torch.bool)
        self.register_buffer("itself", torch.eye(length, dtype=torch.bool), persistent=False)
        self.register_buffer("earlier", square.tril(-1), persistent=False)

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return user vectors (B, d) for item vectors (B, L, d), oldest first, and `mask` (B, L), True for items.

        L may be shorter than `history_length`; a user without items gets the learned cold-start vector.
        """
        x, allowed = self._enter(history, mask)
        for block in self.blocks[:-1]:
            x = block(x, Dense(x), allowed)
        newest = self.norm(self.blocks[-1](x[:, -1:], Dense(x), allowed[:, :, -1:])[:, 0])
        return torch.where(mask.any(1, keepdim=True), newest, self.cold_start)

    def every_position(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return the user vectors (B, L, d) after each position, from the items up to and including that position.

        The vector at the last position equals `forward`. As in the paper, an item keeps the positional embedding of its
        place in the padded window, whereas `forward` puts the newest item of any history at the last place: the vector
        at an earlier position thus differs from `forward` of the prefix. Padding positions before the first item hold
        the cold-start vector.
        """
        x, allowed = self._enter(history, mask)
        for block in self.blocks:
            x = block(x, Dense(x), allowed)
        return torch.where(mask.cumsum(1)[..., None] > 0, self.norm(x), self.cold_start)

    def _enter(self, history: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of the first block (B, L, d), and the attention mask (B, 1, L, L)."""
        length = history.shape[1]
        x = self.dropout(history + self.positions[-length:])
        # A position always sees itself: a padding row then has something to attend to and cannot become NaN.
        allowed = self.itself[:length, :length] | (self.earlier[:length, :length] & mask[:, None])
        return x, allowed[:, None]
