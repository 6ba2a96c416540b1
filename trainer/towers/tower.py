"""What every user tower is; `weir.trainer.tower_config.TOWERS` maps kinds to classes."""

from abc import ABC, abstractmethod
from typing import cast

from torch import Tensor, nn

from weir.trainer.tower_config import TowerConfig, kinds
from weir.trainer.towers.history import History

__all__ = ["Tower"]


class Tower(nn.Module, ABC):
    """The protocol of a user tower: a module made from a `TowerConfig`, that turns a history into a vector.

    A class instead of a `typing.Protocol`, because a tower is a module as well, and no type says both.

    B is the number of users, L the length of their histories, d the dimension of item and user vectors. A history
    holds the vectors of items (B, L, d), oldest first and padded on the left; `mask` (B, L) is True for items. What
    padding holds must not matter. L may be shorter than `history_length`. A user without an item gets a learned vector,
    unless the tower knows users.
    """

    def __init__(self, config: TowerConfig) -> None:  # noqa: ARG002 - for towers that have parameters
        """Draw the parameters from torch's generator, which `build_tower` seeds."""
        super().__init__()

    @property
    def reads_items(self) -> bool:
        """Whether `read` asks for no vector of each place."""
        return False

    @abstractmethod
    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors of users (B, d) after their newest item; serving runs this, exported as ONNX."""

    def read(self, history: History, mask: Tensor) -> Tensor:
        """Return what `forward` does, for histories of any kind."""
        return cast(Tensor, self(history.every(), mask))

    def every_position(self, history: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG002 - for towers that read sequences
        """Return the vectors of users (B, L, d) after each position, from the items up to it.

        Offline training on whole histories needs it, unless the tower knows users. The last one is `forward`'s.
        """
        allowed = ", ".join(kinds(knows_users=False))
        raise ValueError(f"{type(self).__name__} reads no sequences; allowed are {allowed}")
