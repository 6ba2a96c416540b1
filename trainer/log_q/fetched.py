"""Counts that come with the embeddings of the same rows: a step exchanges both at once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.items.places import Places
from trainer.items.route import Route

__all__ = ["FetchedCounts", "with_counts"]


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


def with_counts(route: Route, embeddings: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return embeddings (n, d) and counts (n,), float64, of the rows of a route; all ranks call it together.

    `embeddings` (m, d) and `counts` (m,) are those of `Route.asked`. The bits of a count travel as further numbers of
    its embedding.
    """
    both = route.answered(torch.cat([embeddings, counts[:, None].view(embeddings.dtype)], 1))
    dimension = embeddings.shape[1]
    # A copy even where the numbers lie side by side: float64 starts at a multiple of 8 bytes.
    bits = both[:, dimension:].clone(memory_format=torch.contiguous_format)
    return both[:, :dimension].contiguous(), bits.view(torch.float64)[:, 0]
