"""Bayesian negative sampling: of some uniform candidates, keep the hardest one that is probably a true negative.

Source: Liu and Wang, "Bayesian Negative Sampling for Recommendation", ICDE 2023 (BNS).
"""

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["bayesian_choice", "true_negative"]


def true_negative(scores: Tensor, prior: Tensor | float, keep: Tensor | None = None) -> Tensor:
    """Estimate the probability that each candidate is a true negative: their `unbias`.

    (1 - F)(1 - P) / (1 - F - P + 2 F P), with P the prior of a false negative and F the empirical distribution of the
    scores at the candidate's. F counts the row's own candidates and divides by one more than their number, which keeps
    it below 1 (the authors count all items that are not the user's positives, and divide in the same way).

    Parameters
    ----------
    scores
        Logits of the candidates, (..., C).
    prior
        Probability that each candidate is a false negative, in [0, 1], (..., C) or one for all: the published choice is
        the item's share of all interactions; a constant tau+ says nothing about popularity.
    keep
        Booleans (..., C): False = no candidate, for the scores of the others neither. None keeps all.

    Returns
    -------
    Tensor
        Probabilities, (..., C). Those of candidates that are not kept mean nothing.

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
    """Choose for each row the candidate of the least conditional sampling risk.

    The risk is info * (1 - (1 + weight) * unbias), with info = 1 - sigmoid(pos - score) and unbias of `true_negative`.

    The choice is a function of the candidates. If these are drawn uniformly, an item comes up as often as it wins over
    all lists of C candidates it can be drawn in; as F depends on the whole list, this has no closed form. There is
    therefore no log Q, and the chosen items are negatives for pairwise losses, not for a corrected softmax.

    Parameters
    ----------
    pos
        Logits of the positives, (...).
    scores, prior, keep
        As for `true_negative`.
    weight
        Gain of a true negative over the loss by a false one, lambda, at least 0; the authors take 5.

    Returns
    -------
    Tensor
        Number of the chosen candidate in [0, C), (...), int64; the first of equals, and 0 where none is kept.

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
    # Only the order of the risks matters: relative to the hardest candidate they do not underflow.
    log_info = functional.logsigmoid(scores - pos[..., None])
    if keep is not None:
        log_info = log_info.masked_fill(~keep, -torch.inf)
    info = (log_info - log_info.amax(-1, keepdim=True)).exp()
    risk = info * (1 - (1 + weight) * unbias)
    return (risk if keep is None else risk.masked_fill(~keep, torch.inf)).argmin(-1)
