"""Negatives from the item cache of importance resampling (XIR)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from weir.trainer.losses import ItemCache
from weir.trainer.negatives.sampler import Draw, Pool, Sampler

__all__ = ["Cached"]


@dataclass(frozen=True)
class Cached(Sampler):
    """Use the cached items as negatives of all rows; their ids are table rows.

    XIR then resamples them by `weir.trainer.losses.resample`, which draws candidate i for row u with probability
    `resampling_log_weights`; the log Q here is that of the cached candidates before resampling.
    """

    cache: ItemCache

    def draw(self, positives: Tensor, real: Tensor, generator: torch.Generator) -> Draw:  # noqa: ARG002 - the protocol's
        """Return all slots (N,), which the cache's own generator drew at the last `redraw`."""
        items = self.cache.items.to(positives.device)
        return Draw(items, torch.ones_like(items, dtype=torch.bool))

    def log_q(self, items: Tensor, pool: Pool) -> Tensor:  # noqa: ARG002 - the protocol's
        """Return the density of `redraw`; -inf for items that are never drawn. Call before `update`."""
        return self.cache.log_density().to(items.device)[items]
