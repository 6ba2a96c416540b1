"""Binary cross-entropy losses: a separate sigmoid for the positive and for each negative.

Source: gSASRec (Petrov and Macdonald, RecSys 2023) as used in Khrylchenko et al., RecSys 2025, section 4.1.
"""

import torch
from torch import Tensor

from weir.trainer.losses import _numerics as checks
from weir.trainer.losses._numerics import count_kept, no_negatives, softplus, widen
from weir.trainer.losses.inputs import LossInputs
from weir.trainer.settings.trainer import TrainerConfig


def bce_of(step: LossInputs, _: TrainerConfig) -> Tensor:
    """Return the losses (b,) of `loss.kind = bce`."""
    return bce(step.pos, step.pooled, step.keep)


def gbce_of(step: LossInputs, config: TrainerConfig) -> Tensor:
    """Return the losses (b,) of `loss.kind = gbce`."""
    # A young table has fewer items than the pool has draws.
    size = max(step.given("population").shape[1], step.pooled.shape[1] + 1)
    return gbce(step.pos, step.pooled, catalog_size=size, calibration=config.loss.calibration, keep=step.keep)


def bce(pos: Tensor, neg: Tensor, keep: Tensor | None = None) -> Tensor:
    """Binary cross-entropy, averaged over the positive and the kept negatives of each row.

    (softplus(-f(p)) + sum_kept softplus(f(d))) / (1 + n_kept). Parameters as for `gbce`.
    """
    checks.check_pairs(pos, neg, keep)
    return _binary_mean(pos, neg, keep, positive_power=1.0)


def gbce(
    pos: Tensor, neg: Tensor, *, catalog_size: int, calibration: float = 0.75, keep: Tensor | None = None
) -> Tensor:
    """Binary cross-entropy with the positive's sigmoid raised to the power beta, against overconfidence.

    Sampling N of V - 1 negatives makes plain cross-entropy overestimate probabilities. The positive term here is
    -beta log sigmoid(f(p)). With the sampling rate a = N / (V - 1), beta = a ((1 - 1/a) t + 1/a) = 1 - t (1 - a): from
    plain cross-entropy (t = 0) to calibrated probabilities (t = 1).

    Parameters
    ----------
    pos
        Logits of the positives, (B,).
    neg
        Logits of the negatives, (B, N), N <= V - 1. All N columns count for the sampling rate, kept or not.
    catalog_size
        Number of items V, at least 2.
    calibration
        t, in [0, 1].
    keep
        Booleans, (B, N): True = the negative is used. None keeps all.

    Returns
    -------
    Tensor
        Mean over the 1 + n_kept terms of each row, (B,), in the dtype of `pos`. Rows without a kept negative have
        loss 0 and gradient 0, the positive included: a lone positive would only push its logit up without end.

    Raises
    ------
    ValueError
        For wrong shapes or dtypes, a catalogue below 2 or smaller than N + 1, or a calibration outside [0, 1].
    """
    checks.check_pairs(pos, neg, keep)
    if catalog_size < 2:
        raise ValueError(f"catalog_size must be at least 2, got {catalog_size}")
    if neg.shape[1] > catalog_size - 1:
        raise ValueError(f"neg must have at most catalog_size - 1 = {catalog_size - 1} columns, got {neg.shape[1]}")
    if not 0.0 <= calibration <= 1.0:
        raise ValueError(f"calibration must lie in [0, 1], got {calibration}")
    sampling_rate = neg.shape[1] / (catalog_size - 1)
    return _binary_mean(pos, neg, keep, positive_power=1.0 - calibration * (1.0 - sampling_rate))


def _binary_mean(pos: Tensor, neg: Tensor, keep: Tensor | None, positive_power: float) -> Tensor:
    """Return `bce` with the positive's term multiplied by `positive_power`."""
    dtype = pos.dtype
    pos, neg = widen(pos, neg)
    empty = no_negatives(neg, keep)
    positive_term = positive_power * softplus(-pos.masked_fill(empty, 0.0))
    if keep is not None:
        neg = neg.masked_fill(~keep, -torch.inf)  # softplus(-inf) is 0, and so is its gradient
    mean = (positive_term + softplus(neg).sum(1)) / (1.0 + count_kept(neg, keep))
    return mean.masked_fill(empty, 0.0).to(dtype)
