"""Pairwise losses: the probability that the positive is preferred over a negative.

Source: Liu et al., "Debiased Pairwise Learning from Positive-Unlabeled Implicit Feedback".
"""

import math

from torch import Tensor

from weir.trainer.losses import _numerics as checks
from weir.trainer.losses._numerics import log_diff_exp, log_mean_exp, softplus, widen
from weir.trainer.losses.inputs import LossInputs
from weir.trainer.settings.trainer import TrainerConfig


def bpr_of(step: LossInputs, _: TrainerConfig) -> Tensor:
    """Return the losses (b,) of `loss.kind = bpr`, the mean over each row's negatives."""
    neg = step.unlabelled
    return bpr(step.pos.repeat_interleave(neg.shape[1]), neg.flatten()).view_as(neg).mean(1)


def dpl_of(step: LossInputs, config: TrainerConfig) -> Tensor:
    """Return the losses (b,) of `loss.kind = dpl`."""
    extra = step.all_positives[:, 1:]
    return dpl(step.pos, extra, step.unlabelled, tau_plus=config.loss.tau_plus, floor=config.loss.floor)


def bpr(pos: Tensor, neg: Tensor) -> Tensor:
    """Bayesian personalised ranking, -log sigmoid(f(p) - f(d)) (equation 2).

    Parameters
    ----------
    pos, neg
        Logits of the positives and of one negative each, (B,).

    Returns
    -------
    Tensor
        Losses, (B,), in the dtype of `pos`.

    Raises
    ------
    ValueError
        For wrong shapes or dtypes.
    """
    checks.check_logits("B, B", pos=pos, neg=neg)
    wide_pos, wide_neg = widen(pos, neg)
    return softplus(wide_neg - wide_pos).to(pos.dtype)


def dpl(pos: Tensor, extra_pos: Tensor, neg: Tensor, *, tau_plus: float, floor: float = 0.01) -> Tensor:
    """Debiased pairwise loss: `bpr` with the preference over other positives subtracted (equation 19).

    -log max((mean sigmoid(f(p) - f(d)) - tau+ mean sigmoid(f(p) - f(p'))) / tau-, floor).

    The division by tau- is equation 19's. The estimated probability can leave [0, 1] in a finite sample: above 1 the
    loss is negative, below `floor` it is constant and gives the row no gradient.

    Parameters
    ----------
    pos
        Logits of the positives, (B,).
    extra_pos
        Logits of M >= 1 other positives of the same row, (B, M).
    neg
        Logits of N >= 1 unlabelled samples, (B, N).
    tau_plus
        Prior probability that an unlabelled sample is a positive, in (0, 1). Towards 0, with N = 1, the loss becomes
        `bpr` clamped at -log(floor).
    floor
        Least probability, in (0, 1).

    Returns
    -------
    Tensor
        Losses, (B,), in the dtype of `pos`.

    Raises
    ------
    ValueError
        For wrong shapes or dtypes, `tau_plus` or `floor` outside (0, 1).
    """
    checks.check_logits("B, B M+, B N+", pos=pos, extra_pos=extra_pos, neg=neg)
    checks.check_open_unit("tau_plus", tau_plus)
    checks.check_open_unit("floor", floor)
    dtype = pos.dtype
    pos, extra_pos, neg = widen(pos, extra_pos, neg)
    log_over_unlabelled = log_mean_exp(-softplus(neg - pos[:, None]))
    log_over_positives = log_mean_exp(-softplus(extra_pos - pos[:, None])) + math.log(tau_plus)
    log_probability = log_diff_exp(log_over_unlabelled, log_over_positives) - math.log1p(-tau_plus)
    return -log_probability.clamp(min=math.log(floor)).to(dtype)
