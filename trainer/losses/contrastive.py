"""Contrastive losses over positives and many negatives: debiased (false negatives or positives) and hard-negative.

Sources: Troeshestova and Isachenko, "Mitigating Distributional Biases in Contrastive Learning" (the equations below are
theirs); the weighting of hard negatives is that of Robinson et al., "Contrastive Learning with Hard Negative Samples",
the HCL baseline of Liu et al., "Debiased Pairwise Learning from Positive-Unlabeled Implicit Feedback".

Notation: an unlabelled sample is a positive of the row with probability tau+ and a negative with tau- = 1 - tau+.
"""

import math

import torch
from torch import Tensor

from weir.trainer.losses import _numerics as checks
from weir.trainer.losses._numerics import log_diff_exp, log_mean_exp, softplus, widen
from weir.trainer.losses.inputs import LossInputs
from weir.trainer.settings.trainer import TrainerConfig


def debiased_contrastive_of(step: LossInputs, config: TrainerConfig) -> Tensor:
    """Return the losses (b,) of `loss.kind = debiased_contrastive`."""
    return debiased_contrastive(
        step.all_positives, step.unlabelled, tau_plus=config.loss.tau_plus, temperature=step.temperature
    )


def hard_contrastive_of(step: LossInputs, config: TrainerConfig) -> Tensor:
    """Return the losses (b,) of `loss.kind = hard_contrastive`."""
    settings = {"tau_plus": config.loss.tau_plus, "beta": config.loss.beta, "temperature": step.temperature}
    return hard_contrastive(step.all_positives, step.unlabelled, **settings)


def debiased_positive_of(step: LossInputs, config: TrainerConfig) -> Tensor:
    """Return the losses (b,) of `loss.kind = debiased_positive`."""
    self_logit = step.users.square().sum(1) / step.temperature
    return debiased_positive(step.all_positives, step.unlabelled, tau_plus=config.loss.tau_plus, self_logit=self_logit)


def debiased_contrastive(pos: Tensor, neg: Tensor, *, tau_plus: float, temperature: float = 1.0) -> Tensor:
    """InfoNCE with the expected false negatives subtracted (equations 6 and 7).

    -log(e^p / (e^p + N g)), where p is the first positive and
    g = max((mean e^neg - tau+ mean e^pos) / tau-, e^(-1/temperature)).

    Where g is the floor e^(-1/temperature), the negatives get no gradient: by the estimate they are all positives.

    Parameters
    ----------
    pos
        Logits of the positives, (B, 1 + M), already divided by the temperature. Column 0 is the positive of the row;
        the mean over all columns estimates the positive distribution. M may be 0.
    neg
        Logits of N >= 1 unlabelled samples, (B, N), already divided by the temperature.
    tau_plus
        Prior probability that an unlabelled sample is a positive, in (0, 1). Towards 0 the loss becomes `info_nce`.
    temperature
        Only sets the floor: e^(-1/temperature) is the lower bound of e^logit for unit vectors.

    Returns
    -------
    Tensor
        Losses, (B,), in the dtype of `pos`.

    Raises
    ------
    ValueError
        For wrong shapes or dtypes, `tau_plus` outside (0, 1) or a temperature that is not positive.
    """
    return hard_contrastive(pos, neg, tau_plus=tau_plus, beta=0.0, temperature=temperature)


def hard_contrastive(pos: Tensor, neg: Tensor, *, tau_plus: float, beta: float, temperature: float = 1.0) -> Tensor:
    """`debiased_contrastive` with each negative weighted by e^(beta f(d)) over the mean of these weights.

    The gradient passes through the weights. With beta = 0 all weights are equal.

    Parameters
    ----------
    pos, neg, tau_plus, temperature
        As for `debiased_contrastive`.
    beta
        Concentration on hard negatives, at least 0. It multiplies the logits given here, which are already divided by
        the temperature.

    Returns
    -------
    Tensor
        Losses, (B,), in the dtype of `pos`.

    Raises
    ------
    ValueError
        As for `debiased_contrastive`, and for a negative `beta`.
    """
    checks.check_logits("B P+, B N+", pos=pos, neg=neg)
    checks.check_open_unit("tau_plus", tau_plus)
    checks.check_positive("temperature", temperature)
    checks.check_non_negative("beta", beta)
    dtype = pos.dtype
    pos, neg = widen(pos, neg)
    log_positive_share = math.log(tau_plus) + log_mean_exp(pos)
    log_negatives = log_diff_exp(_log_weighted_mean_exp(neg, beta), log_positive_share) - math.log1p(-tau_plus)
    log_g = log_negatives.clamp(min=-1.0 / temperature)
    return softplus(math.log(neg.shape[1]) + log_g - pos[:, 0]).to(dtype)


def _log_weighted_mean_exp(neg: Tensor, beta: float) -> Tensor:
    """Return, per row, the log of the mean of e^neg with weights e^(beta neg) / mean e^(beta neg)."""
    return torch.logsumexp((1.0 + beta) * neg, 1) - torch.logsumexp(beta * neg, 1)


def debiased_positive(pos: Tensor, neg: Tensor, *, tau_plus: float, self_logit: float | Tensor) -> Tensor:
    """Contrastive loss with the expected false positives subtracted (equations 12 to 14 and 16).

    For each positive v, with u over the N negatives,

    -log((P - tau- P-) / (P + (N tau+ - tau-) P-)), P = (sum e^u + e^v + e^self) / (N + 2), P- = mean e^u,

    averaged over the M positives of the row. The denominator is the numerator plus N tau+ P-.

    The paper leaves the numerator free to reach 0 or less, which it can when tau+ < 2 / (N + 2). The numerator
    estimates tau+ times the mean of e^logit over positives, which for vectors of equal norm is at least
    tau+ e^(-self_logit). This value is the floor of the numerator here, in both places where the numerator occurs.
    Above the floor the loss is exactly equation 16. The floor acts when
    (e^v + e^self) / (N + 2) <= (tau- - N / (N + 2)) P- + tau+ e^(-self), that is, when the negatives lie so close to
    the anchor that they account for all of P. The loss then has the value of the floor. Its gradient is not the
    derivative of the (constant) floor, but that of the numerator floor * e^(v - stop_gradient(v)), so that it still
    raises the positive and lowers the negatives.

    Parameters
    ----------
    pos
        Logits of the M >= 1 positives, (B, M), already divided by the temperature.
    neg
        Logits of the N >= 1 negatives, (B, N), already divided by the temperature.
    tau_plus
        Prior probability that an unlabelled sample is a positive, in (0, 1).
    self_logit
        f(x) . f(x) of the anchor divided by the temperature (1 / temperature for unit vectors), a number or (B,).

    Returns
    -------
    Tensor
        Losses, (B,), in the dtype of `pos`.

    Raises
    ------
    ValueError
        For wrong shapes or dtypes or `tau_plus` outside (0, 1).
    """
    checks.check_logits("B M+, B N+", pos=pos, neg=neg)
    checks.check_open_unit("tau_plus", tau_plus)
    dtype = pos.dtype
    pos, neg = widen(pos, neg)
    own = _as_column("self_logit", self_logit, pos)
    size = neg.shape[1]
    log_negatives = log_mean_exp(neg)[:, None]
    log_all = torch.logaddexp(torch.logaddexp(log_negatives + math.log(size), pos), own) - math.log(size + 2)
    log_numerator = log_diff_exp(log_all, math.log1p(-tau_plus) + log_negatives)
    log_floor = math.log(tau_plus) - own.detach()
    floored = log_floor + (pos - pos.detach())
    log_numerator = torch.where(log_numerator > log_floor, log_numerator, floored)
    return softplus(math.log(size * tau_plus) + log_negatives - log_numerator).mean(1).to(dtype)


def _as_column(name: str, value: float | Tensor, like: Tensor) -> Tensor:
    """Return a number or a tensor (B,) as a column (B, 1) in the dtype of `like` (B, M)."""
    if isinstance(value, Tensor) and value.ndim:
        checks.check_shape(name, value, B=like.shape[0])
    return torch.as_tensor(value, dtype=like.dtype, device=like.device).expand(like.shape[0])[:, None]
