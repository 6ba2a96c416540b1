"""Gradients, added up over all ranks in two exchanges: to those that add up, and back."""

from typing import NamedTuple, cast

import torch
from torch import Tensor

from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.route import Route
from weir.trainer.ranks.workers import Workers

__all__ = ["Sums", "sum_over_ranks"]


class Sums(NamedTuple):
    """The gradient (m, d) of the `rows` (m,) that this rank keeps, its length on each rank, and `shared` tensors."""

    rows: Tensor
    embeddings: Tensor
    lengths: list[float]
    shared: list[Tensor]


def sum_over_ranks(
    embeddings: Embeddings, route: Route, gradient: Tensor, shared: list[Tensor], workers: Workers
) -> Sums:
    """Add up the `gradient` (n, d) of a route's rows, and tensors `shared` by all ranks, of its type.

    Each rank adds up the rows that it keeps, and a part of what is shared, in the order of ranks. This part then goes
    to all of them, with the length of the gradient of these rows.
    """
    if workers.world_size == 1:
        rows, sums = embeddings.summed(route, gradient)
        return Sums(rows, sums, [float(_length(sums))], shared)
    flat = torch.cat([one.flatten() for one in shared])
    lines, sums, part = route.add_beside(gradient, flat)
    length = _length(sums)[None].view(flat.dtype)
    sizes = [len(flat[share]) + len(length) for share in workers.shares(len(flat))]
    came = [one.tensor_split([-len(length)]) for one in workers.spread(torch.cat([part, length]), sizes)]
    total = torch.split(torch.cat([one for one, _ in came]), [one.numel() for one in shared])
    lengths = [float(one.clone().view(torch.float64)) for _, one in came]
    alike = [one.view_as(other) for one, other in zip(total, shared, strict=True)]
    return Sums(embeddings.places.rows_at(lines), sums, lengths, alike)


def _length(gradient: Tensor) -> Tensor:
    """Return the Euclidean norm of rows (m, d), in float64, which no square of float32 overflows."""
    # Row by row first: of all at once, torch would make a copy in float64.
    lengths: Tensor = torch.linalg.vector_norm(gradient, dim=1, dtype=torch.float64)
    return cast(Tensor, torch.linalg.vector_norm(lengths))
