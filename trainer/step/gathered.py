"""Vectors that a step reads again and again: gathered once, their gradients summed once.

Autograd would allocate a gradient of the whole table for each lookup, and add these up.

Fifty items of a thousand histories are a few thousand distinct ones, whose vectors fit into the caches of a processor;
a (B, L, d) tensor does not, and a tower would read it ten times and more. Functions of single items are computed once
per distinct item. Functions that mix items are weighted sums of rows, which torch implements as `embedding_bag`, and so
is the gradient from the side of the items: a sum over the positions of an item, in their order.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from weir.trainer.items.placement import order_of
from weir.trainer.towers.tower import History

__all__ = ["GatheredHistories", "Lookup", "Sum"]


_AT_ONCE: Final = 1 << 17
"""Numbers that each thread gathers at a time to compare them: 0.5 MB, a quarter of a core's own cache."""


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
    """Accumulates a gradient; holds no reference to the vectors, which would keep the autograd graph alive."""

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
    """Identity on the vectors, whose backward runs after all lookups' backward and returns the accumulated gradient.

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
    """Autograd function of a lookup; its backward adds the gradient to a `Sum`, and passes none to autograd."""

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


class GatheredHistories(History):
    """Histories whose items are at `places` (B, L) in the vectors (n, d) of a lookup.

    `compare` and `mix` are made for a CPU; a GPU uses `every`.
    """

    def __init__(self, look_up: Lookup, places: Tensor, occurrences: "_Occurrences | None" = None) -> None:
        self._look_up, self._places = look_up, places
        self._occurrences = occurrences or _Occurrences(places, len(look_up.vectors))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of histories B, length L and dimension d."""
        users, length = self._places.shape
        return users, length, self._look_up.vectors.shape[1]

    def newest(self) -> Tensor:
        """Return the vectors (B, 1, d) at the last position."""
        return self._look_up(self._places[:, -1:])

    def every(self) -> Tensor:
        """Return the vector at each position, (B, L, d)."""
        return self._look_up(self._places)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "GatheredHistories":
        """Apply `change` to the n distinct vectors instead of B * L."""
        return GatheredHistories(Lookup(change(self._look_up.vectors)), self._places, self._occurrences)

    def compare(self, asked: Tensor) -> Tensor:
        """Return the dot products (B, K, L) of `asked` (B, K, d) with the vectors of the same history."""
        return self._read(asked, mixes=False)

    def mix(self, weights: Tensor) -> Tensor:
        """Return weighted sums (B, K, d) of the vectors of each history, for `weights` (B, K, L)."""
        return self._read(weights, mixes=True)

    def split(self, count: int) -> Sequence["GatheredHistories"]:
        """Split into parts of `count` histories; the last part may be smaller."""
        return [GatheredHistories(self._look_up, part) for part in torch.split(self._places, count)]

    def _read(self, given: Tensor, *, mixes: bool) -> Tensor:
        source = self._occurrences, self._look_up.sum
        found: Tensor = _Reading.apply(given, self._look_up.vectors, source, mixes)  # type: ignore[no-untyped-call]
        return found


class _Occurrences:
    """Inverse of `places` (B, L): the positions of each of `count` vectors; computed in the backward only."""

    def __init__(self, places: Tensor, count: int) -> None:
        self.places, self._count = places, count
        self._bags: dict[int, tuple[Tensor, Tensor]] = {}

    def spread(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Return for each vector the sum (n, d) over its positions of `rows` (B, K, d), with `weights` (B, K, L)."""
        read, first = self._read(asked := rows.shape[1])
        by_place = weights.transpose(1, 2).reshape(-1, asked).index_select(0, self._order)
        return _bags(rows.flatten(0, 1), read, first, by_place.flatten())

    @cached_property
    def _order(self) -> Tensor:
        return order_of(self.places.flatten())

    def _read(self, asked: int) -> tuple[Tensor, Tensor]:
        """Return the row indices of all vectors' bags and the start of each bag, with `asked` rows per history."""
        if asked not in self._bags:
            numbers = torch.bincount(self.places.flatten(), minlength=self._count)
            read = (self._order // self.places.shape[1] * asked)[:, None] + torch.arange(asked)
            self._bags[asked] = read.flatten(), (numbers.cumsum(0) - numbers) * asked
        return self._bags[asked]


class _Reading(Function):
    """Autograd function of `mix` (with `mixes`) and `compare`: the backward of one is the forward of the other."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, vectors: Tensor, source: "tuple[_Occurrences, Sum]", mixes: bool) -> Tensor:
        ctx.save_for_backward(given, vectors)
        ctx.source, ctx.mixes = source, mixes
        return (_mixed if mixes else _compared)(given, vectors, source[0].places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (given, vectors), (of, total) = ctx.saved_tensors, ctx.source
        total.add_all(of.spread(given, gradient) if ctx.mixes else of.spread(gradient, given))
        back = _compared if ctx.mixes else _mixed
        return back(gradient, vectors, of.places) if ctx.needs_input_grad[0] else None, None, None, None


def _compared(asked: Tensor, vectors: Tensor, places: Tensor) -> Tensor:
    """Return the dot products (B, K, L) of `asked` (B, K, d) with the `vectors` (n, d) at `places` (B, L)."""
    (length, dimension), found = (places.shape[1], vectors.shape[1]), asked.new_empty(*asked.shape[:2], places.shape[1])
    each = max(_AT_ONCE * torch.get_num_threads() // (length * dimension), 1)
    room = vectors.new_empty(min(each, len(asked)), length, dimension)
    parts = (torch.split(one, each) for one in (asked, places, found))
    for some, here, out in zip(*parts, strict=True):
        read = room[: len(some)]
        torch.index_select(vectors, 0, here.flatten(), out=read.view(-1, dimension))
        torch.bmm(some, read.transpose(1, 2), out=out)
    return found


def _mixed(weights: Tensor, vectors: Tensor, places: Tensor) -> Tensor:
    """Return the sums (B, K, d) of the `vectors` (n, d) at `places` (B, L), weighted by `weights` (B, K, L)."""
    read = places[:, None].expand_as(weights).flatten()
    first = torch.arange(0, len(read), places.shape[1])
    return _bags(vectors, read, first, weights.flatten()).view(*weights.shape[:2], -1)


def _bags(rows: Tensor, read: Tensor, first: Tensor, weights: Tensor) -> Tensor:
    """Return sums (m, d) of bags of `rows` (n, d): indices `read` (r,), weighted; bags start at `first` (m,)."""
    return torch.embedding_bag(rows, read, first, per_sample_weights=weights)[0]
