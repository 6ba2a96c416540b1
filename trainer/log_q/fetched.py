"""Counts that have come with the embeddings of the same rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from weir.trainer.items.places import Places

__all__ = ["FetchedCounts"]


@dataclass(frozen=True, eq=False)
class FetchedCounts:
    """Counts of some rows, by ``counts[rows]`` for any of these.

    Parameters
    ----------
    places
        Where rows are.
    keys
        `Places.key` of the rows, (n,), ascending.
    values
        Their counts, (n,).
    """

    places: Places
    keys: Tensor
    values: Tensor

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the counts of rows, of their shape."""
        return self.values[torch.searchsorted(self.keys, self.places.key(rows.contiguous()))]
