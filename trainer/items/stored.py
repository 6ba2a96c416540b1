"""The lines of the embeddings as a checkpoint has them: in the order of places, so that any number of ranks cuts them.

A file is written and read piece by piece: no rank holds what other ranks keep.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, get_args

import torch
from torch import Tensor

from trainer.items.embeddings import Embeddings, Line
from trainer.items.places import Places

__all__ = ["OwnLines", "PlacedLines", "placed"]

_AT_ONCE: Final = 1 << 16
"""Rows fetched at a time: with 64 dimensions 16 MB."""


@dataclass(frozen=True)
class PlacedLines:
    """The lines of all ranks in the order of places, made as they are read; `Embeddings.fetch` says who may read."""

    embeddings: Embeddings
    line: Line

    @property
    def dtype(self) -> torch.dtype:
        """Type of the numbers."""
        return self.embeddings.weight.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """That of all lines together, (capacity, ...)."""
        return self.embeddings.capacity, *self.embeddings.state_dict()[self.line].shape[1:]

    def __iter__(self) -> Iterator[Tensor]:
        capacity, device = self.embeddings.capacity, self.embeddings.weight.device
        for first in range(0, capacity, _AT_ONCE):
            places = torch.arange(first, min(first + _AT_ONCE, capacity), device=device)
            yield self.embeddings.fetch(self.embeddings.places.rows(places), self.line)


def placed(embeddings: Embeddings) -> dict[Line, PlacedLines]:
    """Return what `Embeddings.state_dict` does, of all ranks."""
    return {line: PlacedLines(embeddings, line) for line in get_args(Line)}


@dataclass(frozen=True)
class OwnLines:
    """Which lines of a stored tensor a rank takes; they lie in the order of places, or of rows before format 5."""

    places: Places
    by_place: bool

    @property
    def wanted(self) -> range:
        """The stored lines to look at."""
        return self.places.here if self.by_place else range(self.places.capacity)

    def take(self, first: int, lines: Tensor, into: Tensor) -> None:
        """Copy the own ones among stored lines (n, ...), from number `first` on, into the lines of this rank."""
        stored = torch.arange(first, first + len(lines))
        rows = self.places.rows(stored) if self.by_place else stored
        own = self.places.own(rows)
        into[self.places.local(rows[own])] = lines[own]
