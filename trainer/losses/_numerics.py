"""Argument checks and log-domain arithmetic shared by the losses.

A derivative of 0 * inf is NaN even in a branch that `torch.where` discards. Every function here therefore replaces
a dangerous argument *before* the operation that would overflow, never its result afterwards.
"""

import math
from collections.abc import Collection

import torch
from torch import Tensor
from torch.nn import functional

LOGIT_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def check_logits(shapes: str | None, **tensors: Tensor) -> None:
    """Raise `TypeError` for arguments that are no tensors, `ValueError` for a wrong dtype or shape.

    All tensors must have the same dtype, one of `LOGIT_DTYPES`. `shapes` names the dimensions of each tensor, as in
    ``"B, B N+"``: equal names have equal sizes, and a dimension whose name ends in ``+`` is not empty. None allows any
    shapes.
    """
    names, sizes = list(tensors), dict[str, int]()
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch tensor, got {type(value).__name__}")
        if value.dtype not in LOGIT_DTYPES:
            raise ValueError(f"{name} must be float32, float64 or bfloat16, got {value.dtype}")
        if value.dtype != tensors[names[0]].dtype:
            raise ValueError(f"{name} must have the dtype of {names[0]}, {tensors[names[0]].dtype}, got {value.dtype}")
    for (name, value), shape in zip(tensors.items(), shapes.split(",") if shapes else (), strict=bool(shapes)):
        dims = shape.replace("+", "").split()
        check_shape(name, value, **{dim: sizes.get(dim) for dim in dims})
        sizes |= zip(dims, value.shape, strict=True)
        for place, dim in enumerate(shape.split()):
            if dim.endswith("+"):
                check_not_empty(name, value, place)


def check_shape(name: str, value: Tensor, **expected: int | None) -> None:
    """Raise `ValueError` if a shape differs from `expected`: one size per named dimension, None for any size."""
    fits = value.ndim == len(expected) and all(
        size is None or size == came for size, came in zip(expected.values(), value.shape, strict=True)
    )
    if not fits:
        dims = ", ".join(dim if size is None else f"{dim}={size}" for dim, size in expected.items())
        raise ValueError(f"{name} must have shape ({dims}), got {tuple(value.shape)}")


def check_pairs(pos: Tensor, neg: Tensor, keep: Tensor | None = None) -> None:
    """Check logits `pos` (B,) and `neg` (B, N) and the boolean mask `keep` (B, N); errors as in `check_logits`."""
    check_logits("B, B N", pos=pos, neg=neg)
    if keep is not None:
        check_keep(keep, neg)


def check_keep(keep: Tensor, neg: Tensor) -> None:
    """Raise `ValueError` for a mask that is not boolean, or not of the shape of `neg` (B, N)."""
    if keep.dtype != torch.bool:
        raise ValueError(f"keep must be boolean (True = the negative takes part), got {keep.dtype}")
    check_shape("keep", keep, B=neg.shape[0], N=neg.shape[1])


def check_not_empty(name: str, value: Tensor, dim: int) -> None:
    """Raise `ValueError` for a tensor of size 0 in dimension `dim`, over which the caller computes a mean."""
    if value.shape[dim] == 0:
        raise ValueError(f"{name} must have at least one element in dimension {dim}, got shape {tuple(value.shape)}")


def check_log_density(name: str, value: Tensor) -> None:
    """Raise `TypeError` for no tensor, `ValueError` for an integer dtype or NaN; infinities pass (`check_finite`)."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(value).__name__}")
    if not value.is_floating_point():
        raise ValueError(f"{name} must hold log-probabilities of a floating dtype, got {value.dtype}")
    if bool(value.isnan().any()):
        raise ValueError(f"{name} must hold log-probabilities, got {int(value.isnan().sum())} NaN")


def check_finite(name: str, value: Tensor, used: Tensor | None = None) -> None:
    """Raise `ValueError` for NaN and infinities, but only where the mask `used` (same shape), if given, is True."""
    bad = ~value.isfinite()
    if used is not None and bool(bad.any()):
        bad = bad & used
    if bool(bad.any()):
        raise ValueError(f"{name} must be finite wherever it is used, got {int(bad.sum())} values that are not")


def check_open_unit(name: str, value: float) -> None:
    """Raise `ValueError` for a number outside the open interval (0, 1), and for NaN."""
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value}")


def check_positive(name: str, value: float) -> None:
    """Raise `ValueError` for a number that is infinite, NaN, or not above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0, got {value}")


def check_non_negative(name: str, value: float) -> None:
    """Raise `ValueError` for a number that is infinite, NaN, or negative."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be a finite number of at least 0, got {value}")


def check_choice(name: str, value: str, allowed: Collection[str]) -> None:
    """Raise `ValueError` for a name that is not one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(sorted(allowed))}, got {value!r}")


def check_index(name: str, value: Tensor, size: int) -> None:
    """Raise `ValueError` for indices that are not integers in [0, size)."""
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise ValueError(f"{name} must hold integer indices, got {value.dtype}")
    lowest, highest = torch.stack(torch.aminmax(value)).tolist() if value.numel() else (0, -1)
    if lowest < 0 or highest >= size:
        raise ValueError(f"{name} must lie in [0, {size}), got values from {lowest} to {highest}")


def widen(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in the dtype in which losses are computed: bfloat16 becomes float32, others stay."""
    return tuple(tensor.float() if tensor.dtype == torch.bfloat16 else tensor for tensor in tensors)


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + e^x), exact to rounding for all x; `torch.softplus` is linear above 20."""
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
    """Return log sum_j e^(x_j) over the kept entries of each row of `x` (B, N); 0 without gradient where `empty`."""
    if keep is not None:
        x = torch.where(keep, x, -torch.inf)
    return torch.logsumexp(x, 1).masked_fill(empty, 0.0)
