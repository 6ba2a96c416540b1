"""Counts fetched together with the embeddings of the same rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from weir.trainer.items.places import Places

__all__ = ["FetchedCounts"]


@dataclass(frozen=True, eq=False)
class FetchedCounts:
    """Counts of the fetched rows, by ``counts[rows]``.

    Parameters
    ----------
    places
        Sharding of the rows.
    keys
        `Places.key` of the rows, (n,), ascending.
    values
        Their counts, (n,).
    """

    places: Places
    keys: Tensor
    values: Tensor

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the counts of rows, in their shape."""
        return self.values[torch.searchsorted(self.keys, self.places.key(rows.contiguous()))]
