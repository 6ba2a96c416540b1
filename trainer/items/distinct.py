"""Distinct integers, sort order and mask positions; NumPy on a CPU, where torch takes up to ten times as long.

NumPy uses vector instructions there.
"""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from weir.contracts.ascending import ascending

__all__ = ["distinct", "distinct_and_counts", "distinct_and_places", "order_of", "where"]


def distinct(numbers: Tensor) -> Tensor:
    """Return the distinct values (n,) of integers (m,), ascending."""
    found: Tensor = torch.unique(numbers) if numbers.is_cuda else torch.from_numpy(ascending(numbers.numpy()))
    return found


def distinct_and_counts(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct values (n,) of integers (m,), ascending, and the count of each, (n,)."""
    ordered = numbers.sort().values if numbers.is_cuda else torch.from_numpy(np.sort(numbers.numpy()))
    return cast(tuple[Tensor, Tensor], torch.unique_consecutive(ordered, return_counts=True))


def distinct_and_places(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct values (n,) of integers (m,), ascending, and the index of each input in them, (m,).

    Integers must lie in [0, 2^62 / m). All results are int64.
    """
    if numbers.is_cuda:
        return cast(tuple[Tensor, Tensor], torch.unique(numbers.long(), return_inverse=True))
    ordered, order = _ordered(numbers)
    found, place = torch.unique_consecutive(ordered, return_inverse=True)
    return found, torch.empty_like(place).scatter_(0, order, place)


def order_of(numbers: Tensor) -> Tensor:
    """Return the stable argsort (m,) of integers (m,) in [0, 2^62 / m)."""
    return torch.sort(numbers, stable=True).indices if numbers.is_cuda else _ordered(numbers)[1]


def _ordered(numbers: Tensor) -> tuple[Tensor, Tensor]:
    # Each value is sorted with its position in the low bits: cheaper than an argsort, or a search afterwards.
    bits = len(numbers).bit_length()
    packed = torch.from_numpy(np.sort(torch.arange(len(numbers)).add_(numbers, alpha=1 << bits).numpy()))
    return packed >> bits, packed & ((1 << bits) - 1)


def where(mask: Tensor) -> Tensor:
    """Return the ascending positions (n,) at which a mask (m,) is True."""
    return torch.nonzero(mask)[:, 0] if mask.is_cuda else torch.from_numpy(np.flatnonzero(mask.numpy()))
