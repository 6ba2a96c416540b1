"""Base class of user towers; `weir.trainer.tower_config.TOWERS` maps kinds to classes."""

from abc import ABC, abstractmethod
from typing import cast

from torch import Tensor, nn

from weir.trainer.tower_config import TowerConfig, kinds
from weir.trainer.towers.history import History

__all__ = ["Tower"]


class Tower(nn.Module, ABC):
    """A user tower: a module built from a `TowerConfig` that maps a history to a user vector.

    A base class and not a `typing.Protocol`, because a tower is also an `nn.Module`, and no type expresses both.

    B is the number of users, L the length of their histories, d the dimension of item and user vectors. A history
    holds the vectors of items (B, L, d), oldest first and padded on the left; `mask` (B, L) is True for items. The
    content of padding must not matter. L may be shorter than `history_length`. A user without items gets a learned
    vector, unless the tower has a vector per user.
    """

    def __init__(self, config: TowerConfig) -> None:  # noqa: ARG002 - for towers that have parameters
        """Draw the parameters from torch's generator, which `build_tower` seeds."""
        super().__init__()

    @property
    def reads_items(self) -> bool:
        """Whether `read` works without a (B, L, d) tensor of vectors."""
        return False

    @abstractmethod
    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return the user vectors (B, d) after the newest item; serving runs this, exported as ONNX."""

    def read(self, history: History, mask: Tensor) -> Tensor:
        """Return `forward` for histories of any kind."""
        return cast(Tensor, self(history.every(), mask))

    def every_position(self, history: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG002 - for towers that read sequences
        """Return the user vectors (B, L, d) after each position, from the items up to it.

        Offline training on whole histories needs it, unless the tower has a vector per user. The last one equals
        `forward`.
        """
        allowed = ", ".join(kinds(knows_users=False))
        raise ValueError(f"{type(self).__name__} reads no sequences; allowed are {allowed}")
