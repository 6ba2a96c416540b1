"""Pack lines of several tensors into bytes, so that one exchange sends all."""

import math

import torch
from torch import Tensor

__all__ = ["bytes_of", "packed", "unpacked"]


def packed(parts: tuple[Tensor, ...]) -> Tensor:
    """Return the bytes of each line of tensors (n, ...), of any types and shapes after n, as (n, bytes)."""
    return torch.cat([bytes_of(part) for part in parts], 1)


def unpacked(lines: Tensor, like: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the tensors of packed lines (n, bytes), with types and shapes as in `like` except for n."""
    found = tuple(one.new_empty(len(lines), *one.shape[1:]) for one in like)
    into = [bytes_of(one) for one in found]
    for one, part in zip(into, torch.split(lines, [one.shape[1] for one in into], 1), strict=True):
        one.copy_(part)
    return found


def bytes_of(lines: Tensor) -> Tensor:
    """Return the bytes of each line of a tensor (n, ...), (n, bytes); without a copy if it is contiguous."""
    width = math.prod(lines.shape[1:])
    # A tensor with at most one element may have any strides; `view` accepts only these.
    return lines.contiguous().as_strided((len(lines), width), (width, 1)).view(torch.uint8)
