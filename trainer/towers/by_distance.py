"""What towers share in which a place of the history counts by its distance to the one it is read after."""

import torch
from torch import Tensor

from trainer.config import TowerConfig
from trainer.towers.tower import Tower

__all__ = ["ByDistance"]


class ByDistance(Tower):
    """A tower without vectors of places, so that every position trains what answers."""

    age: Tensor
    itself: Tensor
    earlier: Tensor

    def __init__(self, config: TowerConfig) -> None:
        super().__init__(config)
        place = torch.arange(config.history_length)
        self.register_buffer("age", (place[:, None] - place).clamp(min=0), persistent=False)
        self.register_buffer("itself", torch.eye(len(place), dtype=torch.bool), persistent=False)
        self.register_buffer("earlier", torch.ones_like(self.itself).tril(-1), persistent=False)

    def see(self, mask: Tensor, *, newest: bool = False) -> tuple[Tensor, Tensor]:
        """Return how many places back each is (Q, L), and which ones a place sees (B, Q, L), given `mask` (B, L).

        Q is the `newest` place, or all L. A place always sees itself, so that a row of padding has something to see and
        cannot become NaN; it sees no padding else, and none that comes later.
        """
        length = mask.shape[1]
        first = length - 1 if newest else 0
        age, itself, earlier = (each[first:length, :length] for each in (self.age, self.itself, self.earlier))
        return age, itself | (earlier & mask[:, None])
