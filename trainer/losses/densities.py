"""Sampling densities (log Q) that correct the softmax losses.

Source: Khrylchenko et al., "Correcting the LogQ Correction: Revisiting Sampled Softmax for Large-Scale Retrieval",
RecSys 2025, sections 3.2, 3.3 and 4.
"""

import math
from typing import Final

import torch
from torch import Tensor

from weir.trainer.losses import _checks as checks
from weir.trainer.losses._logspace import widen

CORRECTIONS: Final = ("none", "standard", "improved")


def log_without_positive(log_q_pos: Tensor) -> Tensor:
    """Return log(1 - Q(p)); raises ValueError for Q(p) >= 1."""
    if bool((log_q_pos >= 0).any()):
        raise ValueError(f"log_q_pos must be below 0 (Q(p) < 1), got a maximum of {float(log_q_pos.max())}")
    return torch.log(-torch.expm1(log_q_pos))


def mixture_log_q(log_q_in_batch: Tensor, log_q_uniform: Tensor | float, num_in_batch: int, num_uniform: int) -> Tensor:
    """Log-density of a negative drawn from in-batch items and uniform items together.

    A pool of n_b in-batch and n_u uniform negatives is a sample of the mixture
    Q(d) = (n_b Q_b(d) + n_u Q_u(d)) / (n_b + n_u), whichever half an item came from. (The paper's mixed setting uses
    the unigram log Q for both halves; pass `num_uniform=0` for that.)

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
