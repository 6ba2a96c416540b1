"""Lines of several tensors as bytes, so that they travel together."""

import math

import torch
from torch import Tensor

__all__ = ["packed", "unpacked"]


def packed(parts: tuple[Tensor, ...]) -> Tensor:
    """Return tensors (n, ...), of any types and shapes but for n, as the bytes of each line, (n, bytes)."""
    return torch.cat([_bytes(part) for part in parts], 1)


def unpacked(lines: Tensor, like: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the tensors of packed lines (n, bytes), given some `like` them but for n."""
    found = tuple(one.new_empty(len(lines), *one.shape[1:]) for one in like)
    into = [_bytes(one) for one in found]
    for one, part in zip(into, torch.split(lines, [one.shape[1] for one in into], 1), strict=True):
        one.copy_(part)
    return found


def _bytes(part: Tensor) -> Tensor:
    """Return the bytes of each line of a tensor; the same memory, if its lines follow one another."""
    lines = part.reshape(len(part), math.prod(part.shape[1:]))
    if lines.numel():
        return lines.view(torch.uint8)
    # What is empty may have any strides, which no view of bytes takes.
    return lines.new_empty(len(lines), lines.shape[1] * lines.element_size(), dtype=torch.uint8)
