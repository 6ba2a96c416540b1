"""Bayesian negative sampling: choose from uniform candidates a hard negative that is probably a true negative.

Source: Liu and Wang, "Bayesian Negative Sampling for Recommendation", ICDE 2023 (BNS).
"""

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["bayesian_choice", "true_negative"]


def true_negative(scores: Tensor, prior: Tensor | float, keep: Tensor | None = None) -> Tensor:
    """Estimate the probability that each candidate is a true negative (`unbias` in the paper).

    (1 - F)(1 - P) / (1 - F - P + 2 F P), where P is the prior probability of a false negative, and F the empirical
    distribution function of the scores, at the candidate's score. F is estimated from the candidates of the row and
    divided by their number plus one, so that it is below 1. The authors estimate it from all items that are not
    positives of the user.

    Parameters
    ----------
    scores
        Logits of the candidates, (..., C).
    prior
        Probability that each candidate is a false negative, in [0, 1], (..., C) or a scalar: the published choice is
        the item's share of all interactions; a constant tau+ ignores popularity.
    keep
        Booleans (..., C): False = masked, and not counted in F. None keeps all.

    Returns
    -------
    Tensor
        Probabilities, (..., C); meaningless for masked candidates.

    Raises
    ------
    ValueError
        For a prior outside [0, 1].
    """
    chance = torch.as_tensor(prior, dtype=scores.dtype, device=scores.device)
    if not bool(((chance >= 0) & (chance <= 1)).all()):
        raise ValueError(f"prior must lie in [0, 1], got values from {float(chance.min())} to {float(chance.max())}")
    kept = torch.ones_like(scores, dtype=torch.bool) if keep is None else keep
    counted = scores.masked_fill(~kept, torch.inf)
    ordered, size = counted.sort(-1).values, kept.sum(-1, keepdim=True)
    below = torch.searchsorted(ordered, counted, right=True).minimum(size)
    share = below.to(scores.dtype) / (size + 1)
    honest = (1 - share) * (1 - chance)
    return honest / (honest + share * chance)


@torch.no_grad()
def bayesian_choice(
    pos: Tensor, scores: Tensor, *, prior: Tensor | float, weight: float = 5.0, keep: Tensor | None = None
) -> Tensor:
    """Choose for each row the candidate with the least conditional sampling risk.

    The risk is info * (1 - (1 + weight) * unbias), with info = 1 - sigmoid(pos - score) and unbias of `true_negative`.

    The density of the chosen item depends on the whole list of candidates through F and has no closed form, even if the
    candidates are drawn uniformly. So there is no log Q: use the chosen items as negatives of pairwise losses, not of a
    corrected softmax.

    Parameters
    ----------
    pos
        Logits of the positives, (...).
    scores, prior, keep
        As for `true_negative`.
    weight
        lambda, the gain by a true negative relative to the loss by a false one, at least 0; the authors use 5.

    Returns
    -------
    Tensor
        Index of the chosen candidate in [0, C), (...), int64; the first on ties, 0 in rows without a kept candidate.

    Raises
    ------
    ValueError
        For shapes that differ, no candidates, a negative weight, or a prior outside [0, 1].
    """
    if scores.ndim == 0 or scores.shape[:-1] != pos.shape or not scores.shape[-1]:
        raise ValueError(f"scores must have shape {(*pos.shape, 'C')} with C >= 1, got {tuple(scores.shape)}")
    if not weight >= 0:
        raise ValueError(f"weight must be at least 0, got {weight}")
    unbias = true_negative(scores, prior, keep)
    # Only the order of the risks matters: taken relative to the hardest candidate, they do not underflow.
    log_info = functional.logsigmoid(scores - pos[..., None])
    if keep is not None:
        log_info = log_info.masked_fill(~keep, -torch.inf)
    info = (log_info - log_info.amax(-1, keepdim=True)).exp()
    risk = info * (1 - (1 + weight) * unbias)
    return (risk if keep is None else risk.masked_fill(~keep, torch.inf)).argmin(-1)
