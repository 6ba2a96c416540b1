"""Arithmetic on logarithms, with gradients that stay finite wherever the values do.

A derivative of 0 * inf is NaN even in a branch that `torch.where` discards. Every function here therefore replaces
a dangerous argument *before* the operation that would overflow, never its result afterwards.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional


def widen(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in the dtype to compute in: bfloat16 becomes float32, the others stay."""
    return tuple(tensor.float() if tensor.dtype == torch.bfloat16 else tensor for tensor in tensors)


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + e^x), exact to rounding on the whole line (`torch.softplus` turns linear above 20)."""
    result: Tensor = -functional.logsigmoid(-x)
    return result


def log_mean_exp(x: Tensor) -> Tensor:
    """Return log((1/n) sum_j e^(x_j)) over the last dimension, of size n >= 1."""
    return torch.logsumexp(x, -1) - math.log(x.shape[-1])


def log_diff_exp(a: Tensor, b: Tensor) -> Tensor:
    """Return log(e^a - e^b), and -inf with zero gradient where b >= a.

    The gap b - a is kept away from zero by the smallest normal number, so that the derivative 1 / (1 - e^(b - a))
    stays representable.
    """
    gap = b - a
    safe = gap.clamp(max=-torch.finfo(gap.dtype).tiny)
    return torch.where(gap < 0, a + torch.log(-torch.expm1(safe)), -torch.inf)


def no_negatives(neg: Tensor, keep: Tensor | None) -> Tensor:
    """Return (B,) booleans: True for rows of `neg` (B, N) without a kept negative."""
    if keep is None:
        return torch.full((neg.shape[0],), neg.shape[1] == 0, dtype=torch.bool, device=neg.device)
    return ~keep.any(1)


def count_kept(neg: Tensor, keep: Tensor | None) -> Tensor:
    """Return the number of kept negatives per row, (B,), in the dtype of `neg`."""
    if keep is None:
        return neg.new_full((neg.shape[0],), neg.shape[1])
    return keep.sum(1).to(neg.dtype)


def logsumexp_kept(x: Tensor, keep: Tensor | None, empty: Tensor) -> Tensor:
    """Return log sum over the kept entries of each row of `x` (B, N); 0 with zero gradient in `empty` rows."""
    if keep is not None:
        x = torch.where(keep, x, -torch.inf)
    return torch.logsumexp(x, 1).masked_fill(empty, 0.0)
