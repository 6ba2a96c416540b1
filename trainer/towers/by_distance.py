"""Base class of towers in which a position of the history counts by its distance to the query position."""

from abc import abstractmethod

import torch
from torch import Tensor

from weir.trainer.config import TowerConfig
from weir.trainer.towers.history import Dense, History
from weir.trainer.towers.tower import Tower

__all__ = ["ByDistance"]


class ByDistance(Tower):
    """A tower without positional embeddings, so that every position of a history trains the newest one, which serves.

    The first layer maps an item alike at all positions, and in the last layer only the newest position is a query.
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
        """Return `forward` for histories of any kind."""

    def see(self, mask: Tensor, *, newest: bool = False) -> tuple[Tensor, Tensor]:
        """Return the distance back to each position (Q, L), and the attention mask (B, Q, L), given `mask` (B, L).

        Q is the `newest` position only, or all L. A position always sees itself, so that a padding row has something to
        attend to and cannot become NaN; apart from that it sees neither padding nor later positions.
        """
        length = mask.shape[1]
        first = length - 1 if newest else 0
        age, itself, earlier = (each[first:length, :length] for each in (self.age, self.itself, self.earlier))
        return age, itself | (earlier & mask[:, None])
