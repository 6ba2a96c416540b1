"""The negatives of a step: the batch's own positives and uniform draws from the table, with their log-densities.

Every rank knows the whole batch, so all ranks form the same columns and nothing has to be gathered.
"""

import math

import torch
from torch import Tensor

from trainer.config import NegativesConfig
from trainer.losses import mixture_log_q

__all__ = ["draw_uniform", "keep_mask", "log_density"]


def draw_uniform(live: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw `count` of the `live` rows with replacement."""
    return live[torch.randint(len(live), (count,), generator=generator)]


def log_density(config: NegativesConfig, log_q: Tensor, in_batch: int, live: int) -> Tensor:
    """Return the log-probability that a column of the step holds an item.

    Parameters
    ----------
    config
        Which sources take part.
    log_q
        Log-probability that the stream carries each item, (n,).
    in_batch
        The number of positives in the global batch.
    live
        The number of rows that items own, of which uniform draws take one.

    Returns
    -------
    Tensor
        (n,): the density of the mixture, whichever source a column came from. Below 0 for a lone item too.
    """
    log_uniform = -math.log(max(live, 2))
    return mixture_log_q(log_q, log_uniform, in_batch if config.in_batch else 0, config.uniform)


def keep_mask(columns: Tensor, real: Tensor, forbidden: Tensor) -> Tensor:
    """Tell which columns are negatives of which row.

    Parameters
    ----------
    columns
        Items (C,) as numbers in [0, n) of a small set, such as the distinct rows of the batch.
    real
        Which columns (C,) are not padding.
    forbidden
        Items (B, F) that must not be negatives of the row: its positive, and its history where that is masked.

    Returns
    -------
    Tensor
        (B, C) booleans. Time and memory grow with B times (C + F), not with B times C times F.
    """
    distinct, place = torch.unique(columns, return_inverse=True)
    size = max(int(columns.max()), int(forbidden.max())) + 1
    # Items that are no column are sent to one further place, which is cut off again.
    slot = torch.full((size,), len(distinct), device=columns.device)
    slot[distinct] = torch.arange(len(distinct), device=columns.device)
    hit = torch.zeros(len(forbidden), len(distinct) + 1, dtype=torch.bool, device=columns.device)
    hit.scatter_(1, slot[forbidden], True)  # noqa: FBT003 - the value to scatter
    return real & ~hit[:, place]
