"""Sums of gradients over all ranks in two exchanges: to the ranks that sum, and back."""

from typing import NamedTuple, cast

import torch
from torch import Tensor

from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.route import Route
from weir.trainer.ranks.workers import Workers

__all__ = ["Sums", "sum_over_ranks"]


class Sums(NamedTuple):
    """Gradient (m, d) of this rank's `rows` (m,), norms of the row gradients of each rank, and `shared` tensors."""

    rows: Tensor
    embeddings: Tensor
    lengths: list[float]
    shared: list[Tensor]


def sum_over_ranks(
    embeddings: Embeddings, route: Route, gradient: Tensor, shared: list[Tensor], workers: Workers
) -> Sums:
    """Sum the `gradient` (n, d) of a route's rows over ranks, and tensors `shared` by all ranks, of the same type.

    Each rank sums the rows of its shard, and one part of the shared tensors, in the order of ranks. It then sends this
    part to all ranks, with the norm of its row gradients.
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
    """Return the Euclidean norm of rows (m, d), in float64, where squares of float32 cannot overflow."""
    # Row by row first: for all rows at once, torch would make a copy in float64.
    lengths: Tensor = torch.linalg.vector_norm(gradient, dim=1, dtype=torch.float64)
    return cast(Tensor, torch.linalg.vector_norm(lengths))
