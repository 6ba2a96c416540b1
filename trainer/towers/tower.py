"""The base class of user towers, and the interface of the histories that they read."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from weir.trainer.settings.towers import TowerConfig, kinds

__all__ = ["Dense", "History", "Tower"]


class History(ABC):
    """B histories of L item vectors of width d, oldest first.

    Towers that use only these operations need no (B, L, d) tensor: an item that occurs at many positions can be read
    from one shared vector (`weir.trainer.step.gathered`).
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Number of histories B, length L and dimension d."""

    @abstractmethod
    def newest(self) -> Tensor:
        """Return the vectors (B, 1, d) at the last position."""

    @abstractmethod
    def every(self) -> Tensor:
        """Return all vectors (B, L, d)."""

    @abstractmethod
    def mapped(self, change: Callable[[Tensor], Tensor]) -> "History":
        """Return the histories with `change` applied to each vector; it maps (..., d) to (..., e), vector by vector."""

    @abstractmethod
    def compare(self, asked: Tensor) -> Tensor:
        """Return the dot products (B, K, L) of `asked` (B, K, d) with the vectors of the same history."""

    @abstractmethod
    def mix(self, weights: Tensor) -> Tensor:
        """Return weighted sums (B, K, d) of the vectors of each history, for `weights` (B, K, L)."""

    @abstractmethod
    def split(self, count: int) -> Sequence["History"]:
        """Split into parts of `count` histories; the last part may be smaller."""


@dataclass(frozen=True)
class Dense(History):
    """Histories stored as a tensor of vectors (B, L, d)."""

    vectors: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of histories B, length L and dimension d."""
        users, length, dimension = self.vectors.shape
        return users, length, dimension

    def newest(self) -> Tensor:
        """Return the vectors (B, 1, d) at the last position."""
        return self.vectors[:, -1:]

    def every(self) -> Tensor:
        """Return all vectors (B, L, d)."""
        return self.vectors

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Dense":
        """Return the histories with `change` applied to the whole tensor."""
        return Dense(change(self.vectors))

    def compare(self, asked: Tensor) -> Tensor:
        """Return the dot products (B, K, L) of `asked` (B, K, d) with the vectors of the same history."""
        return asked @ self.vectors.transpose(1, 2)

    def mix(self, weights: Tensor) -> Tensor:
        """Return weighted sums (B, K, d) of the vectors of each history, for `weights` (B, K, L)."""
        return weights @ self.vectors

    def split(self, count: int) -> "Sequence[Dense]":
        """Split into parts of `count` histories; the last part may be smaller."""
        return [Dense(part) for part in torch.split(self.vectors, count)]


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
        """Return user vectors (B, d) as `forward` does, but from a `History`, which needs no (B, L, d) tensor."""
        return cast(Tensor, self(history.every(), mask))

    def every_position(self, history: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG002 - for towers that read sequences
        """Return the user vectors (B, L, d) after each position, from the items up to it.

        Offline training on whole histories needs it, unless the tower has a vector per user. The last vector equals
        `forward`.
        """
        allowed = ", ".join(kinds(knows_users=False))
        raise ValueError(f"{type(self).__name__} reads no sequences; allowed are {allowed}")
