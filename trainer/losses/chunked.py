"""Loss and gradients of the in-batch softmax by torch operations, in chunks of rows, on any device and dtype."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from weir.trainer.losses._numerics import softplus

__all__ = ["Plan", "pass_in_chunks", "row_loss"]


_LOG2_E: Final = math.log2(math.e)

_BOUND: Final = 64.0
"""Bound on logits to the base 2 below which no peak is subtracted: sums of columns stay far below float32's 2^127."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Inputs of a softmax pass over B rows and N columns, besides the embeddings.

    The log-odds of a row are logsumexp over its kept columns of (logit + column_bias), minus the positive's logit, plus
    row_bias.

    Attributes
    ----------
    hits
        (row, column) pairs left out of the sum, (H, 2), int64, in any order, repetitions allowed.
    times
        Multiplicity of each column, (N,).
    column_bias, row_bias
        Terms of the correction, (N,) and (B,).
    improved
        Whether the loss is that of the ``improved`` correction.
    scale
        Factor from inner products to logits.
    chunk_rows
        Rows whose logits may be in memory at a time.
    """

    hits: Tensor
    times: Tensor
    column_bias: Tensor
    row_bias: Tensor
    improved: bool
    scale: float
    chunk_rows: int


def row_loss(log_odds: Tensor, kept: Tensor, improved: bool) -> tuple[Tensor, Tensor]:
    """Return the loss of each row (B,), and the size of its gradient (B,); both are 0 for rows without a negative.

    `kept` (B,) is the number of negatives of each row.
    """
    empty = kept == 0
    if improved:
        pull = torch.sigmoid(log_odds - kept.clamp(min=1).to(log_odds.dtype).log())
        loss = pull * log_odds
    else:
        pull, loss = torch.sigmoid(log_odds), softplus(log_odds)
    return loss.masked_fill(empty, 0.0), pull.masked_fill(empty, 0.0)


def pass_in_chunks(
    query: Tensor, items: Tensor, pos: Tensor, plan: Plan, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return losses and gradients as described in `weir.trainer.losses.softmax._pass`.

    Only the logits of one chunk of rows are in memory.
    """
    losses, pull = torch.empty_like(pos), torch.empty_like(pos)
    # The gradient of the items is transposed, (d, N): the product is faster.
    query_gradient, items_gradient = torch.empty(0), torch.empty(0, 0)
    if weight is not None:
        query_gradient, items_gradient = pos.new_zeros(query.shape), pos.new_zeros(items.T.shape)
    # Logits to the base 2: MKL's `exp` is many times slower than `exp2` where values are -inf or far below the others.
    scale, bias = plan.scale * _LOG2_E, plan.column_bias * _LOG2_E
    logits_of = _logits(query, items, scale, bias)
    is_bounded = _is_bounded(query, items, scale, bias)
    pairs, places = _distinct(plan.hits, len(items))
    kept = _kept(pairs, plan.times, len(query))
    # One buffer for all chunks: an allocator may keep several buffers if each chunk allocates its own.
    buffer = pos.new_empty(min(plan.chunk_rows, len(query)), len(items))
    for rows, hidden in _chunks(places, plan.chunk_rows, (len(query), len(items))):
        powers = logits_of(rows, buffer[: rows.stop - rows.start])
        powers.view(-1).index_fill_(0, hidden, -torch.inf)
        peak: Tensor | float = 0.0
        if not is_bounded:
            peak = powers.amax(1).masked_fill_(kept[rows] == 0, 0.0)
            powers.sub_(peak[:, None])
        total = powers.exp2_().sum(1).clamp_(min=torch.finfo(pos.dtype).tiny)
        log_odds = (total.log2() + peak) / _LOG2_E - pos[rows] + plan.row_bias[rows]
        losses[rows], pull[rows] = row_loss(log_odds, kept[rows], plan.improved)
        if weight is not None:
            pull[rows] *= weight[rows]
            share = (plan.scale * pull[rows] / total)[:, None]
            factors = powers.to(query.dtype)
            _add_product(query_gradient[rows], factors, items).mul_(share)
            _add_product(items_gradient, (query[rows] * share).to(query.dtype).T, factors)
    return losses, query_gradient, items_gradient.T, -pull


def _logits(query: Tensor, items: Tensor, scale: float, bias: Tensor) -> Callable[[slice, Tensor], Tensor]:
    """Return a function that writes the logits of some rows, scale * query @ items.T + bias, to a given tensor."""
    if query.dtype != bias.dtype:

        def add(rows: slice, out: Tensor) -> Tensor:
            return _add_product(out.copy_(bias.expand_as(out)), query[rows], items.T, scale)

        return add
    # The bias is appended as one more dimension of the items: its addition costs nothing.
    left = torch.cat([query * scale, query.new_ones(len(query), 1)], 1)
    right = torch.cat([items, bias[:, None]], 1)
    return lambda rows, out: torch.mm(left[rows], right.T, out=out)


def _is_bounded(query: Tensor, items: Tensor, scale: float, bias: Tensor) -> bool:
    """Return whether all logits are small enough for `exp2` to neither overflow nor underflow without a peak."""
    longest, largest = (torch.linalg.vector_norm(vectors, dim=1).max() for vectors in (query, items))
    return bool(scale * longest * largest + bias.abs().max() <= _BOUND)


def _add_product(total: Tensor, left: Tensor, right: Tensor, scale: float = 1.0) -> Tensor:
    """Add scale * left @ right to `total` in place; bfloat16 factors are summed in float32, the dtype of `total`."""
    if left.dtype != torch.bfloat16:
        return total.addmm_(left, right, alpha=scale)
    if left.is_cuda:
        return total.add_(torch.mm(left, right, out_dtype=torch.float32), alpha=scale)
    return total.addmm_(left.float(), right.float(), alpha=scale)


def _distinct(hits: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Return the distinct pairs of `hits` (H, 2), by row and column, and their flat positions in the matrix, (H,).

    Pairs that are distinct and sorted already, as in a training step, are returned as they are.
    """
    places = hits[:, 0] * columns + hits[:, 1]
    if bool((places[1:] > places[:-1]).all()):
        return hits, places
    places = torch.unique(places)
    return torch.stack([places // columns, places % columns], 1), places


def _kept(pairs: Tensor, times: Tensor, rows: int) -> Tensor:
    """Return the number of columns of each row without `pairs`, (B,), counted with multiplicity `times` (N,)."""
    return times.sum().repeat(rows).index_add_(0, pairs[:, 0], times[pairs[:, 1]], alpha=-1)


def _chunks(places: Tensor, each: int, shape: tuple[int, int]) -> list[tuple[slice, Tensor]]:
    """Split the rows of a matrix into chunks of `each` rows, with the positions to hide in each chunk.

    `places` are flat positions in the matrix of this `shape`, ascending; the result counts from its chunk's start.
    """
    rows, columns = shape
    starts = [*range(0, rows, each), rows]
    bounds = torch.searchsorted(places, columns * torch.tensor(starts, device=places.device)).tolist()
    return [
        (slice(start, stop), places[low:high] - start * columns)
        for (start, stop), (low, high) in zip(itertools.pairwise(starts), itertools.pairwise(bounds), strict=True)
    ]
