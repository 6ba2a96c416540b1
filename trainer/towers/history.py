"""What user towers read: the vectors of items at the places of histories."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Dense", "History"]


class History(ABC):
    """The vectors of B histories of L items, of length d, oldest first.

    A tower that asks for no more than this need not have a vector for each place: an item that occurs at many of them
    can be read where it is (`weir.trainer.step.placed`).
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """B, L and d."""

    @abstractmethod
    def newest(self) -> Tensor:
        """Return the vectors (B, 1, d) at the last place."""

    @abstractmethod
    def every(self) -> Tensor:
        """Return all vectors (B, L, d)."""

    @abstractmethod
    def mapped(self, change: Callable[[Tensor], Tensor]) -> "History":
        """Return the histories of changed vectors; `change` turns (..., d) into (..., e), each vector by itself."""

    @abstractmethod
    def compare(self, asked: Tensor) -> Tensor:
        """Return the products (B, K, L) of `asked` (B, K, d) with the vectors of the same history."""

    @abstractmethod
    def mix(self, weights: Tensor) -> Tensor:
        """Return the sums (B, K, d) of the vectors of each history, by `weights` (B, K, L)."""

    @abstractmethod
    def split(self, count: int) -> Sequence["History"]:
        """Return the same in parts of so many histories, the last one perhaps of fewer."""


@dataclass(frozen=True)
class Dense(History):
    """Histories whose vectors (B, L, d) are there for each place."""

    vectors: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """B, L and d."""
        users, length, dimension = self.vectors.shape
        return users, length, dimension

    def newest(self) -> Tensor:
        """Return the vectors (B, 1, d) at the last place."""
        return self.vectors[:, -1:]

    def every(self) -> Tensor:
        """Return them all, (B, L, d)."""
        return self.vectors

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Dense":
        """Change all of them at once."""
        return Dense(change(self.vectors))

    def compare(self, asked: Tensor) -> Tensor:
        """Return the products (B, K, L) of `asked` (B, K, d) with the vectors of the same history."""
        return asked @ self.vectors.transpose(1, 2)

    def mix(self, weights: Tensor) -> Tensor:
        """Return the sums (B, K, d) of the vectors of each history, by `weights` (B, K, L)."""
        return weights @ self.vectors

    def split(self, count: int) -> "Sequence[Dense]":
        """Return the same in parts of so many histories."""
        return [Dense(part) for part in torch.split(self.vectors, count)]
