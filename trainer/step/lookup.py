"""Embedding lookup whose gradients are added into one tensor.

Autograd would allocate a gradient of the whole table for each lookup, and add these up.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

__all__ = ["Lookup", "Sum"]


class Lookup:
    """Looks up rows of `vectors` (n, d) by index; only looked-up rows receive a gradient."""

    def __init__(self, vectors: Tensor) -> None:
        self.sum = Sum(vectors)
        self.vectors: Tensor = _Summed.apply(vectors, self.sum)  # type: ignore[no-untyped-call]

    def __call__(self, index: Tensor) -> Tensor:
        """Return the vectors (..., d) at indices (...)."""
        found: Tensor = _Read.apply(self.vectors, index, self.sum)  # type: ignore[no-untyped-call]
        return found


class Sum:
    """The accumulated gradient; it holds no reference to the vectors, which would keep the autograd graph alive."""

    def __init__(self, vectors: Tensor) -> None:
        self._shape = vectors.shape
        self.gradient: Tensor | None = None

    def add(self, index: Tensor, gradient: Tensor) -> None:
        """Add the gradient (..., d) of the vectors at indices (...)."""
        if gradient.is_cuda:
            # On a GPU `index_add_` would serialise repeated indices, or add them in any order.
            part = torch.ops.aten.embedding_dense_backward(
                gradient, index, self._shape[0], padding_idx=-1, scale_grad_by_freq=False
            )
            self.add_all(part)
            return
        if self.gradient is None:
            self.gradient = gradient.new_zeros(self._shape)
        self.gradient.index_add_(0, index.flatten(), gradient.flatten(0, -2))

    def add_all(self, gradient: Tensor) -> None:
        """Add a gradient (n, d) of all vectors; the first one becomes the sum, in place."""
        self.gradient = gradient if self.gradient is None else self.gradient.add_(gradient)


class _Summed(Function):
    """Identity on the vectors. Its backward runs after those of all lookups, and returns the accumulated gradient.

    Operations on the whole tensor pass their gradient on as usual.
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
    """A lookup. Its gradient is accumulated at once, and autograd gets none."""

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
