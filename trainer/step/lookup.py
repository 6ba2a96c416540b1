"""Vectors that a step reads again and again: their gradients go into one sum.

Autograd would make a tensor of all vectors for each time that some are read, and add these up.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

__all__ = ["Lookup", "Sum"]


class Lookup:
    """Gives some of `vectors` (n, d) by their numbers; only what is looked up passes a gradient on to them."""

    def __init__(self, vectors: Tensor) -> None:
        self.sum = Sum(vectors)
        self.vectors: Tensor = _Summed.apply(vectors, self.sum)  # type: ignore[no-untyped-call]

    def __call__(self, index: Tensor) -> Tensor:
        """Return the vectors (..., d) of numbers (...)."""
        found: Tensor = _Read.apply(self.vectors, index, self.sum)  # type: ignore[no-untyped-call]
        return found


class Sum:
    """The sum of the gradients; it knows no vectors, which would keep the graph that knows it."""

    def __init__(self, vectors: Tensor) -> None:
        self._shape = vectors.shape
        self.gradient: Tensor | None = None

    def add(self, index: Tensor, gradient: Tensor) -> None:
        """Add the gradient (..., d) of the vectors with numbers (...)."""
        if gradient.is_cuda:
            # There numbers that occur often would be added one after another, or in any order.
            part = torch.ops.aten.embedding_dense_backward(
                gradient, index, self._shape[0], padding_idx=-1, scale_grad_by_freq=False
            )
            self.add_all(part)
            return
        if self.gradient is None:
            self.gradient = gradient.new_zeros(self._shape)
        self.gradient.index_add_(0, index.flatten(), gradient.flatten(0, -2))

    def add_all(self, gradient: Tensor) -> None:
        """Add the gradient (n, d) of all vectors; the first one is the sum, to which later ones are added."""
        self.gradient = gradient if self.gradient is None else self.gradient.add_(gradient)


class _Summed(Function):
    """The vectors themselves. Autograd comes to their gradient once all that were read have theirs.

    What reads all of them as a tensor passes its gradient on as usual.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, total: Sum) -> Tensor:
        ctx.total = total
        ctx.set_materialize_grads(False)
        return vectors.view_as(vectors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        if gradient is not None:
            ctx.total.add_all(gradient)
        return ctx.total.gradient, None


class _Read(Function):
    """Some of the vectors. Their gradient is added at once: autograd has nothing to pass on."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, index: Tensor, total: Sum) -> Tensor:
        ctx.total = total
        ctx.save_for_backward(index)
        return functional.embedding(index, vectors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        ctx.total.add(*ctx.saved_tensors, gradient)
        return None, None, None
