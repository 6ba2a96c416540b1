"""Lines of several tensors as bytes, so that they travel together."""

import math

import torch
from torch import Tensor

__all__ = ["bytes_of", "packed", "unpacked"]


def packed(parts: tuple[Tensor, ...]) -> Tensor:
    """Return tensors (n, ...), of any types and shapes but for n, as the bytes of each line, (n, bytes)."""
    return torch.cat([bytes_of(part) for part in parts], 1)


def unpacked(lines: Tensor, like: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the tensors of packed lines (n, bytes), given some `like` them but for n."""
    found = tuple(one.new_empty(len(lines), *one.shape[1:]) for one in like)
    into = [bytes_of(one) for one in found]
    for one, part in zip(into, torch.split(lines, [one.shape[1] for one in into], 1), strict=True):
        one.copy_(part)
    return found


def bytes_of(lines: Tensor) -> Tensor:
    """Return the bytes of each line of a tensor (n, ...), (n, bytes); the same memory, if lines follow one another."""
    width = math.prod(lines.shape[1:])
    # What is empty, or a single number, may have any strides, which no view of bytes takes.
    return lines.contiguous().as_strided((len(lines), width), (width, 1)).view(torch.uint8)
