"""Negatives drawn uniformly from the items of the table: one list shared by all rows, or one list per row."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weir.trainer.negatives.sampler import Draw, Pool, RowList, Sampler

__all__ = ["PerRow", "Uniform", "draw_uniform"]


def draw_uniform(live: RowList, count: int, generator: torch.Generator) -> Tensor:
    """Draw `count` of the `live` rows with replacement."""
    return live[torch.randint(len(live), (count,), generator=generator)]


@dataclass(frozen=True)
class Uniform(Sampler):
    """Draw from all items with equal probability, with replacement.

    Parameters
    ----------
    live
        Table rows in use, (V,), V >= 1.
    count
        Negatives per step, or, for `PerRow`, per row of the batch.
    """

    live: RowList
    count: int

    def __post_init__(self) -> None:
        """Raise `ValueError` for an empty table or a negative count."""
        if not len(self.live):
            raise ValueError("live must hold at least one table row, shape (V,), got (0,)")
        if self.count < 0:
            raise ValueError(f"count must be at least 0, got {self.count}")

    def draw(self, positives: Tensor, real: Tensor, generator: torch.Generator) -> Draw:  # noqa: ARG002 - the protocol's
        """Return `count` items (N,) for all rows."""
        items = draw_uniform(self.live, self.count, generator).to(positives.device)
        return Draw(items, torch.ones_like(items, dtype=torch.bool))

    def log_q(self, items: Tensor, pool: Pool) -> Tensor:  # noqa: ARG002 - the protocol's
        """Return -log V, the density of every live item."""
        return torch.full(items.shape, -math.log(len(self.live)), dtype=torch.float64, device=items.device)


@dataclass(frozen=True)
class PerRow(Uniform):
    """Draw negatives for every row of the batch separately, uniformly and with replacement, as for pairwise losses."""

    def draw(self, positives: Tensor, real: Tensor, generator: torch.Generator) -> Draw:
        """Return `count` items for each row, (B, N); items of padding rows are not real."""
        shape = len(positives), self.count
        items = draw_uniform(self.live, math.prod(shape), generator).to(positives.device).view(shape)
        return Draw(items, real[:, None].expand(shape))
