"""Importance resampling of the batch (BIR), and of a cache beside it (XIR).

Source: Chen et al., "Cache-Augmented Inbatch Importance Resampling for Training Recommender Retriever", NeurIPS 2022,
algorithms 1 and 2.
"""

import torch
from torch import Tensor

from trainer.config import LossConfig
from trainer.losses import resample, resampled_softmax
from trainer.step.view import View

__all__ = ["resampled"]


def resampled(view: View, config: LossConfig) -> tuple[Tensor, Tensor]:
    """Return the losses (b,) and the columns drawn (b, D): of the pool, then, counted on from them, of the cache.

    Each part draws as many candidates as it holds; with a cache, half as many.
    """
    share = 2 if len(view.cached) else 1
    batch, columns = _part(view, view.columns, view.log_q_columns, share)
    if not len(view.cached):
        return batch, columns
    cache, slots = _part(view, view.cached, view.log_q_cached, share)
    weight = config.cache_share
    return weight * cache + (1 - weight) * batch, torch.cat([columns, slots + len(view.columns)], 1)


def _part(view: View, candidates: Tensor, log_q: Tensor, share: int) -> tuple[Tensor, Tensor]:
    scores = view.users @ candidates.T / view.temperature
    drawn = resample(scores.detach(), log_q, max(len(candidates) // share, 1), view.generator)
    return resampled_softmax(view.pos, scores, drawn), drawn
