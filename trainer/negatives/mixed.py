"""Mixed negatives: in-batch positives and uniform draws in one pool; and negatives from the item cache.

Source: Yang et al., "Mixed Negative Sampling for Learning Two-tower Neural Networks in Recommendations", WWW 2020;
the unigram density of both halves is that of Khrylchenko et al. (RecSys 2025), appendix on the experiments.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from weir.trainer.losses import ItemCache, mixture_log_q
from weir.trainer.negatives.in_batch import InBatch
from weir.trainer.negatives.sampler import Draw, Pool, RowList, RowValues, Sampler, below_one
from weir.trainer.negatives.uniform import Uniform
from weir.trainer.settings.trainer import NegativesConfig

__all__ = ["Cached", "Mixed", "shared_pool"]


@dataclass(frozen=True)
class Cached(Sampler):
    """Use the cached items as negatives of all rows; their ids are table rows.

    The loss `resampled_softmax` then resamples them for each row; the log Q here is that of the cached items before
    resampling.
    """

    cache: ItemCache

    def draw(self, positives: Tensor, real: Tensor, generator: torch.Generator) -> Draw:  # noqa: ARG002 - the protocol's
        """Return the items in all slots of the cache (N,), drawn by the cache's own generator at the last `redraw`."""
        items = self.cache.items.to(positives.device)
        return Draw(items, torch.ones_like(items, dtype=torch.bool))

    def log_q(self, items: Tensor, pool: Pool) -> Tensor:  # noqa: ARG002 - the protocol's
        """Return the log-density with which the cache was filled; -inf for items that are never drawn.

        Call it before the cache is updated.
        """
        return self.cache.log_density().to(items.device)[items]


@dataclass(frozen=True)
class Mixed:
    """Concatenate in-batch and uniform negatives, in this order.

    Parameters
    ----------
    in_batch, uniform
        Samplers of the two sources.
    density
        ``"mixture"``: density of the pool, weighted by the actual counts of both sources. ``"unigram"``: the in-batch
        density for both sources, as published; it overweights rare items that were drawn uniformly.
    """

    in_batch: InBatch
    uniform: Uniform
    density: Literal["mixture", "unigram"] = "mixture"

    def draw(self, positives: Tensor, real: Tensor, generator: torch.Generator) -> Draw:
        """Return the negatives of both sources (N,), in-batch first."""
        halves = [half.draw(positives, real, generator) for half in (self.in_batch, self.uniform)]
        return Draw(*(torch.cat(parts) for parts in zip(*halves, strict=True)))

    def log_q(self, items: Tensor, pool: Pool) -> Tensor:
        """Return log((n_b Q_b + n_u Q_u) / (n_b + n_u)) or, with ``unigram``, log Q_b."""
        return self._mix(self.in_batch.log_q(items, pool), items, pool)

    def log_q_own(self, items: Tensor, pool: Pool) -> Tensor:
        """Return the same density for a row's own positive, from `InBatch.log_q_own`; below 0."""
        return below_one(self._mix(self.in_batch.log_q_own(items, pool), items, pool))

    def _mix(self, log_q: Tensor, items: Tensor, pool: Pool) -> Tensor:
        """Return the density of the pool, given the in-batch density `log_q` of the items."""
        if self.density == "unigram":
            return log_q
        log_uniform = self.uniform.log_q(items, pool).to(log_q)
        return mixture_log_q(log_q, log_uniform, self.in_batch.size(pool), self.uniform.count)


def shared_pool(config: NegativesConfig, stream_log_q: RowValues, live: RowList) -> Sampler:
    """Return the sampler of the negatives shared by all rows.

    Parameters
    ----------
    config
        Settings that choose the sources; without a source, the pool is empty.
    stream_log_q
        Log-probability of each item among the interactions of the stream, by table row.
    live
        Table rows in use, (V,).
    """
    in_batch = InBatch(stream_log_q, config.in_batch_limit, config.deduplicate)
    uniform = Uniform(live, config.uniform)
    if not config.in_batch:
        return uniform
    return Mixed(in_batch, uniform, config.density) if config.uniform else in_batch
