"""Distinct integers in ascending order, and where a mask is True: what numpy does on a CPU with vector instructions.

torch takes up to ten times as long there.
"""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from contracts.ascending import ascending

__all__ = ["distinct", "distinct_and_places", "where"]


def distinct(numbers: Tensor) -> Tensor:
    """Return the distinct ones (n,) of integers (m,), ascending."""
    found: Tensor = torch.unique(numbers) if numbers.is_cuda else torch.from_numpy(ascending(numbers.numpy()))
    return found


def distinct_and_places(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct ones (n,) of integers (m,) in [0, 2^62 / m), ascending, and the place of each there, (m,).

    All in int64.
    """
    if numbers.is_cuda:
        return cast(tuple[Tensor, Tensor], torch.unique(numbers.long(), return_inverse=True))
    # Each is sorted with its own place in the low bits: cheaper than a sort that gives places, or a search for them.
    bits = len(numbers).bit_length()
    packed = torch.from_numpy(np.sort(torch.arange(len(numbers)).add_(numbers, alpha=1 << bits).numpy()))
    found, place = torch.unique_consecutive(packed >> bits, return_inverse=True)
    return found, torch.empty_like(place).scatter_(0, packed & ((1 << bits) - 1), place)


def where(mask: Tensor) -> Tensor:
    """Return the places (n,) at which a mask (m,) is True, ascending."""
    return torch.nonzero(mask)[:, 0] if mask.is_cuda else torch.from_numpy(np.flatnonzero(mask.numpy()))
