"""What towers share in which a place of the history counts by its distance to the one it is read after."""

from abc import abstractmethod

import torch
from torch import Tensor

from weir.trainer.config import TowerConfig
from weir.trainer.towers.history import Dense, History
from weir.trainer.towers.tower import Tower

__all__ = ["ByDistance"]


class ByDistance(Tower):
    """A tower without vectors of places, so that every position trains what answers.

    What its first layer makes of an item is the same at all places, and only the newest place of the last layer asks.
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
        """With one layer, and no place changed by itself."""
        return self._reads_items

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return user vectors (B, d) for item vectors (B, L, d), oldest first, and `mask` (B, L), True for items.

        L may be shorter than `history_length`; a user without any item gets the learned cold-start vector.
        """
        return self.read(Dense(history), mask)

    @abstractmethod
    def read(self, history: History, mask: Tensor) -> Tensor:
        """Return what `forward` does, for histories of any kind."""

    def see(self, mask: Tensor, *, newest: bool = False) -> tuple[Tensor, Tensor]:
        """Return how many places back each is (Q, L), and which ones a place sees (B, Q, L), given `mask` (B, L).

        Q is the `newest` place, or all L. A place always sees itself, so that a row of padding has something to see and
        cannot become NaN; it sees no padding else, and none that comes later.
        """
        length = mask.shape[1]
        first = length - 1 if newest else 0
        age, itself, earlier = (each[first:length, :length] for each in (self.age, self.itself, self.earlier))
        return age, itself | (earlier & mask[:, None])
