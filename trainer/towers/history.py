"""Histories as user towers read them: item vectors at each position, dense or without a copy per position."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Dense", "History"]


class History(ABC):
    """B histories of L item vectors of width d, oldest first.

    Towers that use only these operations need no (B, L, d) tensor: an item that occurs at many positions can be read
    from one shared vector (`weir.trainer.step.placed`).
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
        """Apply `change`, which maps each vector independently, (..., d) to (..., e)."""

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
        """Apply `change` to the whole tensor."""
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
