"""LightGCN: embeddings propagated over the graph of interactions.

He et al., "LightGCN: Simplifying and Powering Graph Convolution Network for Recommendation", SIGIR 2020. Users and
items are nodes, each with an embedding; a layer replaces every node's vector by the normalised sum of its neighbours',
``E(k+1) = D^-1/2 A D^-1/2 E(k)``, and the result is the mean over all layers, including the embeddings.

Use it for a closed set of interactions only. In a stream every event is a new edge: the graph would grow without bound,
and one edge changes the vectors of all users and items within `layers` steps. A served item would depend on all users,
and a user on more than her own history.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Graph"]

Rows = npt.NDArray[np.int64]


class Graph:
    """The normalised adjacency matrix of users and items, whose embeddings share one table.

    Parameters
    ----------
    users, items
        Rows of the two ends of each interaction, (n,); repeated interactions are one edge.
    capacity
        Rows of the table, including rows without an edge.
    device, dtype
        Device and dtype of the vectors to propagate.

    Raises
    ------
    ValueError
        If users and items differ in shape, a row lies outside the table, or a row is used for both a user and an item.
    """

    def __init__(
        self,
        users: Rows,
        items: Rows,
        capacity: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        _check(users, items, capacity)
        pairs = np.unique(users.astype(np.int64) * capacity + items)
        users, items = pairs // capacity, pairs % capacity
        row, column = np.concatenate([users, items]), np.concatenate([items, users])
        order = np.argsort(row, kind="stable")
        row, column = row[order], column[order]
        degree = np.bincount(row, minlength=capacity)
        self.capacity = capacity
        # CSR layout with 32-bit indices, since the multiplication is bound by memory bandwidth.
        self._offsets = torch.from_numpy(np.append(0, degree.cumsum())).to(device, torch.int32)
        self._columns = torch.from_numpy(column).to(device, torch.int32)
        self._values = torch.from_numpy(1 / np.sqrt(degree[row] * degree[column])).to(device, dtype)

    def propagate(self, weight: Tensor, layers: int) -> Tensor:
        """Return the mean of `weight` (capacity, d) and its `layers` propagations; differentiable in `weight`.

        A row without an edge is zero in every layer except the first, as in the paper's sum over no neighbours: its
        result is its embedding divided by ``layers + 1``.

        Raises
        ------
        ValueError
            If `weight` has another number of rows than the graph, or `layers` is negative.
        """
        if len(weight) != self.capacity:
            raise ValueError(f"the weight has {len(weight)} rows, the graph was built for {self.capacity}")
        if layers < 0:
            raise ValueError(f"layers must be 0 or more, got {layers}")
        propagated: Tensor = _Propagation.apply(weight, self, layers)  # type: ignore[no-untyped-call]
        return propagated

    def _multiply(self, weight: Tensor) -> Tensor:
        """Return the adjacency matrix times `weight`, by `embedding_bag`: faster than torch's sparse product."""
        return functional.embedding_bag(
            self._columns, weight, self._offsets, mode="sum", per_sample_weights=self._values, include_last_offset=True
        )


class _Propagation(torch.autograd.Function):
    """Autograd function of `Graph.propagate`: a polynomial of a symmetric matrix, as is its gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, graph: Graph, layers: int) -> Tensor:
        ctx.graph, ctx.layers = graph, layers
        total = weight
        for _ in range(layers):  # Horner's rule: w + A (w + A (w + ...))
            total = graph._multiply(total).add_(weight)
        return total / (layers + 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        gradient: Tensor = _Propagation.apply(gradients[0], ctx.graph, ctx.layers)  # type: ignore[no-untyped-call]
        return gradient, None, None


def _check(users: Rows, items: Rows, capacity: int) -> None:
    """Raise `ValueError` for wrong shapes, rows outside the table, or rows of both a user and an item."""
    if users.ndim != 1 or users.shape != items.shape:
        raise ValueError(f"users {users.shape} and items {items.shape} must be one-dimensional and equally long")
    for name, rows in (("users", users), ("items", items)):
        outside = rows[(rows < 0) | (rows >= capacity)]
        if len(outside):
            raise ValueError(f"{name} holds row {outside[0]}, the table has rows 0 to {capacity - 1}")
    both = np.intersect1d(users, items)
    if len(both):
        raise ValueError(f"row {both[0]} belongs to a user and to an item: give users rows of their own")
