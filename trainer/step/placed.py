"""Histories whose items are read where they are among the vectors of a step, without a copy for each place.

Fifty items of a thousand histories are a few thousand distinct ones, whose vectors fit into the caches of a processor;
those of all places do not, and a tower would go through them ten times and more. What is computed of an item alone is
computed once. What mixes items is a weighted sum of rows, which torch has as a bag of embeddings, and so is its
gradient, from the side of the items: the sum over the places of an item, in their order.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from weir.trainer.items.distinct import order_of
from weir.trainer.step.lookup import Lookup, Sum
from weir.trainer.towers.history import History

__all__ = ["Placed"]

_AT_ONCE: Final = 1 << 17
"""Numbers that each thread gathers at a time to compare them: 0.5 MB, a quarter of what a core has as its own cache."""


class Placed(History):
    """Histories of the items at `places` (B, L) among the vectors (n, d) of a look-up.

    `compare` and `mix` are made for a CPU; a GPU reads every vector.
    """

    def __init__(self, look_up: Lookup, places: Tensor, occurrences: "_Occurrences | None" = None) -> None:
        self._look_up, self._places = look_up, places
        self._occurrences = occurrences or _Occurrences(places, len(look_up.vectors))

    @property
    def shape(self) -> tuple[int, int, int]:
        """B, L and d."""
        users, length = self._places.shape
        return users, length, self._look_up.vectors.shape[1]

    def newest(self) -> Tensor:
        """Return the vectors (B, 1, d) at the last place."""
        return self._look_up(self._places[:, -1:])

    def every(self) -> Tensor:
        """Return a vector for each place, (B, L, d)."""
        return self._look_up(self._places)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Placed":
        """Change each of the n vectors, instead of one for each place."""
        return Placed(Lookup(change(self._look_up.vectors)), self._places, self._occurrences)

    def compare(self, asked: Tensor) -> Tensor:
        """Return the products (B, K, L) of `asked` (B, K, d) with the vectors of the same history."""
        return self._read(asked, mixes=False)

    def mix(self, weights: Tensor) -> Tensor:
        """Return the sums (B, K, d) of the vectors of each history, by `weights` (B, K, L)."""
        return self._read(weights, mixes=True)

    def split(self, count: int) -> Sequence["Placed"]:
        """Return the same in parts of so many histories."""
        return [Placed(self._look_up, part) for part in torch.split(self._places, count)]

    def _read(self, given: Tensor, *, mixes: bool) -> Tensor:
        source = self._occurrences, self._look_up.sum
        found: Tensor = _Reading.apply(given, self._look_up.vectors, source, mixes)  # type: ignore[no-untyped-call]
        return found


class _Occurrences:
    """Where each of so many vectors occurs at `places` (B, L); found when a gradient asks."""

    def __init__(self, places: Tensor, count: int) -> None:
        self.places, self._count = places, count
        self._bags: dict[int, tuple[Tensor, Tensor]] = {}

    def spread(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Return for each vector the sum (n, d), over its places, of `rows` (B, K, d) by `weights` (B, K, L)."""
        read, first = self._read(asked := rows.shape[1])
        by_place = weights.transpose(1, 2).reshape(-1, asked).index_select(0, self._order)
        return _bags(rows.flatten(0, 1), read, first, by_place.flatten())

    @cached_property
    def _order(self) -> Tensor:
        return order_of(self.places.flatten())

    def _read(self, asked: int) -> tuple[Tensor, Tensor]:
        """Return which rows each vector gets, and where its own begin, where each history has so many rows."""
        if asked not in self._bags:
            numbers = torch.bincount(self.places.flatten(), minlength=self._count)
            read = (self._order // self.places.shape[1] * asked)[:, None] + torch.arange(asked)
            self._bags[asked] = read.flatten(), (numbers.cumsum(0) - numbers) * asked
        return self._bags[asked]


class _Reading(Function):
    """Sums of the vectors at the places by what is `given`, or products with it: each is the gradient of the other."""

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
    """Return the products (B, K, L) of `asked` (B, K, d) with the `vectors` (n, d) at `places` (B, L)."""
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
    """Return the sums (B, K, d) of the `vectors` (n, d) at `places` (B, L), by `weights` (B, K, L)."""
    read = places[:, None].expand_as(weights).flatten()
    first = torch.arange(0, len(read), places.shape[1])
    return _bags(vectors, read, first, weights.flatten()).view(*weights.shape[:2], -1)


def _bags(rows: Tensor, read: Tensor, first: Tensor, weights: Tensor) -> Tensor:
    """Return the sums (m, d) of bags of `rows` (n, d): those `read` (r,), by `weights`, from each `first` (m,) on."""
    return torch.embedding_bag(rows, read, first, per_sample_weights=weights)[0]
