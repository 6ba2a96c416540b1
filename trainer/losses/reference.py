"""Softmax losses on whole matrices of logits, as a reference, and the sampling densities for their corrections.

Training uses the losses of this module for exposure and re-scoring only. For the main loss they are an oracle: the
tests compare value and gradient of `weir.trainer.losses.softmax` with them.

Source: Khrylchenko et al., "Correcting the LogQ Correction: Revisiting Sampled Softmax for Large-Scale Retrieval",
RecSys 2025, sections 3.2, 3.3 and 4.
"""

import math
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from weir.trainer.losses import _numerics as checks
from weir.trainer.losses._numerics import count_kept, logsumexp_kept, no_negatives, softplus, widen

CORRECTIONS: Final = ("none", "standard", "improved")


def log_without_positive(log_q_pos: Tensor) -> Tensor:
    """Return log(1 - Q(p)) from log Q(p) (B,); raises `ValueError` for Q(p) >= 1."""
    if bool((log_q_pos >= 0).any()):
        raise ValueError(f"log_q_pos must be below 0 (Q(p) < 1), got a maximum of {float(log_q_pos.max())}")
    return torch.log(-torch.expm1(log_q_pos))


def mixture_log_q(log_q_in_batch: Tensor, log_q_uniform: Tensor | float, num_in_batch: int, num_uniform: int) -> Tensor:
    """Log-density of a negative drawn from in-batch items and uniform items together.

    A pool of n_b in-batch and n_u uniform negatives is a sample of the mixture
    Q(d) = (n_b Q_b(d) + n_u Q_u(d)) / (n_b + n_u), for items of both sources. The paper's mixed setting uses the
    unigram log Q for both sources: pass `num_uniform=0` for it.

    Parameters
    ----------
    log_q_in_batch
        log Q_b(d), any shape. -inf for items that are never in a batch.
    log_q_uniform
        log Q_u(d), of the same shape or a scalar, usually -log(catalogue size).
    num_in_batch, num_uniform
        Numbers of negatives drawn from each source; one of them may be 0.

    Returns
    -------
    Tensor
        log Q(d), in the dtype of `log_q_in_batch`.

    Raises
    ------
    ValueError
        For NaN, shapes that do not broadcast, negative counts, or both counts 0.
    """
    checks.check_log_density("log_q_in_batch", log_q_in_batch)
    dtype = log_q_in_batch.dtype
    uniform = torch.as_tensor(log_q_uniform, dtype=dtype, device=log_q_in_batch.device)
    checks.check_log_density("log_q_uniform", uniform)
    if uniform.ndim:
        checks.check_shape("log_q_uniform", uniform, **{f"D{i}": size for i, size in enumerate(log_q_in_batch.shape)})
    checks.check_non_negative("num_in_batch", num_in_batch)
    checks.check_non_negative("num_uniform", num_uniform)
    total = num_in_batch + num_uniform
    if total == 0:
        raise ValueError("num_in_batch and num_uniform must not both be 0, got 0 and 0")
    in_batch, uniform = widen(log_q_in_batch, uniform)
    parts = [(in_batch, num_in_batch), (uniform.expand_as(in_batch), num_uniform)]
    weighted = [part + math.log(count / total) for part, count in parts if count]
    mixed = weighted[0] if len(weighted) == 1 else torch.logaddexp(*weighted)
    return mixed.to(dtype)


def sampled_softmax(
    pos: Tensor,
    neg: Tensor,
    *,
    log_q_pos: Tensor | None = None,
    log_q_neg: Tensor | None = None,
    keep: Tensor | None = None,
    correction: str = "improved",
) -> Tensor:
    """Softmax over the positive and a sample of the catalogue, one loss per row.

    With f the logits and the sums over the kept negatives d of a row:

    - ``"none"``: -log(e^f(p) / (e^f(p) + sum e^f(d))).
    - ``"standard"``: the same with f - log Q in place of f, for the positive too (equation 1; correcting the numerator
      adds a constant to the loss, which has no gradient). Never negative.
    - ``"improved"``: w (log sum e^(f(d) - log Q'(d)) - f(p)), where w is the estimated probability
      1 - P(p) = sigmoid(log((1/n) sum e^(f(d) - log Q'(d))) - f(p)), held constant in the gradient, and n counts the
      kept negatives of the row (section 3.3). Its value may be negative; its gradient is that of the full softmax
      as n grows.

    Parameters
    ----------
    pos
        Logits of the positives, (B,), already divided by the temperature.
    neg
        Logits of the negatives, (B, N), already divided by the temperature.
    log_q_pos
        log Q(p) of the positives, (B,). Needed by ``"standard"`` only; other corrections check it, but do not use it.
    log_q_neg
        log-probability of each negative, (N,) or (B, N). For ``"standard"`` log Q(d); for ``"improved"`` log Q'(d) of
        the proposal that cannot draw the positive, see `exclude_positive`. Not used by ``"none"``.
    keep
        Booleans, (B, N): True = the negative is used. None keeps all.
    correction
        ``"none"``, ``"standard"`` or ``"improved"``.

    Returns
    -------
    Tensor
        Losses, (B,), in the dtype of `pos`. Rows without a kept negative have loss 0 and gradient 0.

    Raises
    ------
    ValueError
        For an unknown correction, a missing density that the correction needs, wrong shapes or dtypes, NaN
        in a density, or an infinity where the density is used.
    """
    checks.check_pairs(pos, neg, keep)
    checks.check_choice("correction", correction, CORRECTIONS)
    _check_densities(neg, log_q_pos, log_q_neg, keep, correction)
    dtype = pos.dtype
    pos, neg = widen(pos, neg)
    empty = no_negatives(neg, keep)
    if correction != "none" and log_q_neg is not None:
        neg = neg - log_q_neg.to(neg.dtype)
    if correction == "standard" and log_q_pos is not None:
        pos = pos - log_q_pos.to(pos.dtype)
    # Subtracting the positive before the sum, not after it, keeps relative precision when P(p) is close to 1.
    log_odds = logsumexp_kept(neg - pos[:, None], keep, empty)
    if correction == "improved":
        count = count_kept(neg, keep).clamp(min=1.0)
        weight = torch.sigmoid(log_odds - count.log()).detach()
        loss = weight * log_odds
    else:
        loss = softplus(log_odds)
    return loss.masked_fill(empty, 0.0).to(dtype)


def _check_densities(
    neg: Tensor, log_q_pos: Tensor | None, log_q_neg: Tensor | None, keep: Tensor | None, correction: str
) -> None:
    """Raise `ValueError` for a missing density that the correction needs, wrong shapes, NaN or infinities."""
    rows, columns = neg.shape
    if log_q_neg is None and correction != "none":
        raise ValueError(f"log_q_neg must be given for correction={correction!r}, got None")
    if log_q_pos is None and correction == "standard":
        raise ValueError("log_q_pos must be given for correction='standard', got None")
    if log_q_neg is not None:
        checks.check_log_density("log_q_neg", log_q_neg)
        if log_q_neg.ndim == 1:
            checks.check_shape("log_q_neg", log_q_neg, N=columns)
        else:
            checks.check_shape("log_q_neg", log_q_neg, B=rows, N=columns)
        if correction != "none":
            used = keep.any(0) if keep is not None and log_q_neg.ndim == 1 else keep
            checks.check_finite("log_q_neg", log_q_neg, used)
    if log_q_pos is not None:
        checks.check_log_density("log_q_pos", log_q_pos)
        checks.check_shape("log_q_pos", log_q_pos, B=rows)
        if correction == "standard":
            checks.check_finite("log_q_pos", log_q_pos, ~no_negatives(neg, keep))


def exclude_positive(log_q_neg: Tensor, log_q_pos: Tensor) -> Tensor:
    """Turn log Q into log Q', the density of draws from the catalogue without the row's positive.

    Discarding the positive whenever it is drawn samples from Q'(d) = Q(d) / (1 - Q(p)) (section 4, "Negative sampling
    and logQ correction").

    Parameters
    ----------
    log_q_neg
        log Q(d) of the negatives, (N,) or (B, N). -inf (never drawn) passes through.
    log_q_pos
        log Q(p) of the positives, (B,), below 0. -inf leaves the row unchanged.

    Returns
    -------
    Tensor
        log Q'(d) = log Q(d) - log(1 - Q(p)), (B, N), in the dtype of `log_q_neg`. Entries that *are* the row's positive
        are meaningless and must be masked by `keep`.

    Raises
    ------
    ValueError
        For Q(p) >= 1 (no other item can be drawn), NaN, or wrong shapes.
    """
    checks.check_log_density("log_q_neg", log_q_neg)
    checks.check_log_density("log_q_pos", log_q_pos)
    checks.check_shape("log_q_pos", log_q_pos, B=None)
    if log_q_neg.ndim == 1:
        checks.check_shape("log_q_neg", log_q_neg, N=None)
    else:
        checks.check_shape("log_q_neg", log_q_neg, B=log_q_pos.shape[0], N=None)
    wide_neg, wide_pos = widen(log_q_neg, log_q_pos)
    return (wide_neg - log_without_positive(wide_pos).to(wide_neg.dtype)[:, None]).to(log_q_neg.dtype)


def full_softmax(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy over the whole catalogue, which the sampled losses estimate (section 3.1).

    Parameters
    ----------
    logits
        Logits of all items, (B, V), already divided by the temperature.
    target
        Column of each row's positive, (B,), integers in [0, V).

    Returns
    -------
    Tensor
        Losses, (B,), in the dtype of `logits`.

    Raises
    ------
    ValueError
        For wrong shapes or dtypes, or a target outside [0, V).
    """
    checks.check_logits("B V", logits=logits)
    checks.check_shape("target", target, B=logits.shape[0])
    checks.check_index("target", target, logits.shape[1])
    (wide,) = widen(logits)
    return functional.cross_entropy(wide, target.long(), reduction="none").to(logits.dtype)


def info_nce(pos: Tensor, neg: Tensor, keep: Tensor | None = None) -> Tensor:
    """InfoNCE, the multi-class N-pair loss: -log(e^f(p) / (e^f(p) + sum_kept e^f(d))), (B,).

    The same as `sampled_softmax` without correction; parameters and errors as there.

    Source: Troeshestova and Isachenko, "Mitigating Distributional Biases in Contrastive Learning", equation 1.
    """
    return sampled_softmax(pos, neg, keep=keep, correction="none")
