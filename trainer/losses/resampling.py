"""Importance resampling of in-batch negatives; `weir.trainer.losses.item_cache` adds items of earlier batches.

Source: Chen et al., "Cache-Augmented Inbatch Importance Resampling for Training Recommender Retriever", NeurIPS 2022.
The batch alone gives their BIR; XIR is lam * resampled_softmax(cache) + (1 - lam) * resampled_softmax(batch), each part
with its own index set.
"""

import torch
from torch import Tensor
from torch.nn import functional

from weir.trainer.config import TrainerConfig
from weir.trainer.losses import _checks as checks
from weir.trainer.losses._logspace import softplus, widen
from weir.trainer.losses.inputs import LossInputs, LossResult


def resampled_softmax_of(step: LossInputs, config: TrainerConfig) -> LossResult:
    """Return the losses (b,) of `loss.kind = resampled_softmax` (algorithms 1 and 2), and the columns drawn (b, D).

    Columns are numbered over the pool, then the cache. Each part draws as many candidates as it holds; with a cache,
    half as many.
    """
    columns, cached = step.given("columns"), step.cached
    share = 1 if cached is None else 2
    batch, drawn = _part(step, columns, step.given("log_q_columns"), share)
    if cached is None:
        return LossResult(batch, drawn)
    cache, slots = _part(step, cached, step.given("log_q_cached"), share)
    weight = config.loss.cache_share
    return LossResult(weight * cache + (1 - weight) * batch, torch.cat([drawn, slots + len(columns)], 1))


def _part(step: LossInputs, candidates: Tensor, log_q: Tensor, share: int) -> tuple[Tensor, Tensor]:
    scores = step.users @ candidates.T / step.temperature
    drawn = resample(scores.detach(), log_q, max(len(candidates) // share, 1), step.given("generator"))
    return resampled_softmax(step.pos, scores, drawn), drawn


def resampling_log_weights(scores: Tensor, log_pop: Tensor) -> Tensor:
    """Log-probability log w(i|u) with which row u draws candidate i: a softmax over s(u, i) - log pop(i) (section 3.1).

    Parameters
    ----------
    scores
        Logits of the candidates, (B, C).
    log_pop
        Log-popularity of the candidates in the training data, (C,), finite; any constant offset cancels.

    Returns
    -------
    Tensor
        Log-weights, (B, C), in the dtype of `scores`; every row sums to 1 in probability.

    Raises
    ------
    ValueError
        For wrong shapes or dtypes, no candidates, or popularities that are NaN or infinite.
    """
    checks.check_logits("B C+", scores=scores)
    checks.check_log_density("log_pop", log_pop)
    checks.check_shape("log_pop", log_pop, C=scores.shape[1])
    checks.check_finite("log_pop", log_pop)
    (wide,) = widen(scores)
    return functional.log_softmax(wide - log_pop.to(wide.dtype), dim=1).to(scores.dtype)


@torch.no_grad()
def resample(scores: Tensor, log_pop: Tensor, num_samples: int, generator: torch.Generator) -> Tensor:
    """Draw candidates for every row with probability w(i|u), with replacement (algorithm 1).

    Parameters
    ----------
    scores, log_pop
        As for `resampling_log_weights`.
    num_samples
        Draws per row, at least 1. The paper draws as many as there are candidates (half as many from each part of
        XIR).
    generator
        Source of randomness, on the device of `scores`.

    Returns
    -------
    Tensor
        Columns of `scores`, (B, num_samples), int64.

    Raises
    ------
    ValueError
        As for `resampling_log_weights`, and for `num_samples` below 1.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    (wide,) = widen(scores)
    weights = resampling_log_weights(wide, log_pop).exp()
    return torch.multinomial(weights, num_samples, replacement=True, generator=generator)


def resampled_softmax(pos: Tensor, scores: Tensor, index: Tensor, include_positive: bool = True) -> Tensor:
    """Softmax of the positive over the candidates that `resample` drew for its row.

    -log(e^pos / sum over the drawn of e^score): equations 3 and 4, which are printed without logarithm and minus sign.
    As they are drawn from w(i|u), the candidates already follow the softmax distribution and need no log Q.

    Parameters
    ----------
    pos
        Logits of the positives, (B,).
    scores
        Logits of the candidates, (B, C).
    index
        Columns drawn for each row, (B, S), S >= 1, repetitions counted.
    include_positive
        Whether the denominator includes the positive. Without it the loss is unbounded below for a row that did
        not draw its positive.

    Returns
    -------
    Tensor
        Losses, (B,), in the dtype of `pos`.

    Raises
    ------
    ValueError
        For wrong shapes or dtypes, no draws, or columns outside [0, C).
    """
    checks.check_logits("B, B C", pos=pos, scores=scores)
    checks.check_shape("index", index, B=pos.shape[0], S=None)
    checks.check_not_empty("index", index, 1)
    checks.check_index("index", index, scores.shape[1])
    wide_pos, wide_scores = widen(pos, scores)
    log_odds = torch.logsumexp(wide_scores.gather(1, index.long()) - wide_pos[:, None], 1)
    return (softplus(log_odds) if include_positive else log_odds).to(pos.dtype)
