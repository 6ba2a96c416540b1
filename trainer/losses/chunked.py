"""One pass of the softmax over the columns of a batch, in chunks of rows: on any device, in any type of numbers."""

import itertools
import math
from typing import Final

import torch
from torch import Tensor

from trainer.losses.plan import Plan, row_loss

__all__ = ["pass_in_chunks"]

_LOG2_E: Final = math.log2(math.e)


def pass_in_chunks(
    query: Tensor, items: Tensor, pos: Tensor, plan: Plan, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what `trainer.losses.softmax` takes of a pass, with memory for the logits of a chunk."""
    losses, pull = torch.empty_like(pos), torch.empty_like(pos)
    query_gradient, items_gradient = torch.empty(0), torch.empty(0)
    if weight is not None:
        query_gradient, items_gradient = (torch.zeros_like(one, dtype=pos.dtype) for one in (query, items))
    # Logits to the base 2: where some are -inf, or far below the others, MKL's `exp` is many times slower than `exp2`.
    scale, bias = plan.scale * _LOG2_E, plan.column_bias * _LOG2_E
    # One buffer for all chunks: an allocator may keep several of those that come and go.
    buffer = pos.new_empty(min(plan.chunk_rows, len(query)), len(items))
    for rows, hits in _chunks(plan, len(query)):
        powers = buffer[: rows.stop - rows.start]
        places = hits[:, 0] * len(items) + hits[:, 1]
        kept = _count_kept(hits, places, plan.times, powers)
        powers.copy_(bias)
        _add_product(powers, query[rows], items.T, scale)
        powers.view(-1).index_fill_(0, places, -torch.inf)
        peak = powers.amax(1).masked_fill_(kept == 0, 0.0)
        total = powers.sub_(peak[:, None]).exp2_().sum(1).clamp_(min=torch.finfo(pos.dtype).tiny)
        log_odds = (total.log2() + peak) / _LOG2_E - pos[rows] + plan.row_bias[rows]
        losses[rows], pull[rows] = row_loss(log_odds, kept, plan.improved)
        if weight is not None:
            pull[rows] *= weight[rows]
            share = (plan.scale * pull[rows] / total)[:, None]
            factors = powers.to(query.dtype)
            _add_product(query_gradient[rows], factors, items).mul_(share)
            _add_product(items_gradient, factors.T, (query[rows] * share).to(query.dtype))
    return losses, query_gradient, items_gradient, -pull


def _add_product(total: Tensor, left: Tensor, right: Tensor, scale: float = 1.0) -> Tensor:
    """Add scale * left @ right to `total` in place; bfloat16 factors are summed in float32, the dtype of `total`."""
    if left.dtype != torch.bfloat16:
        return total.addmm_(left, right, alpha=scale)
    if left.is_cuda:
        return total.add_(torch.mm(left, right, out_dtype=torch.float32), alpha=scale)
    return total.addmm_(left.float(), right.float(), alpha=scale)


def _by_row(hits: Tensor) -> Tensor:
    """Return pairs (H, 2) in the order of their rows, as a step has them already."""
    rows = hits[:, 0]
    return hits if bool((rows[1:] >= rows[:-1]).all()) else hits[torch.argsort(rows)]


def _chunks(plan: Plan, rows: int) -> list[tuple[slice, Tensor]]:
    """Split the rows; each chunk comes with its pairs (h, 2), whose rows are counted from its first."""
    pairs, starts = _by_row(plan.hits), [*range(0, rows, plan.chunk_rows), rows]
    bounds = torch.searchsorted(pairs[:, 0].contiguous(), torch.tensor(starts, device=pairs.device)).tolist()
    return [
        (slice(start, stop), pairs[low:high] - pairs.new_tensor([start, 0]))
        for (start, stop), (low, high) in zip(itertools.pairwise(starts), itertools.pairwise(bounds), strict=True)
    ]


def _count_kept(hits: Tensor, places: Tensor, times: Tensor, scratch: Tensor) -> Tensor:
    """Return the columns that each row of a chunk keeps, (rows,), where pairs (h, 2) are left out, repeated or not.

    Column d counts `times` (N,). `scratch` (rows, N) is overwritten at the pairs' `places` (h,) in its memory. Of equal
    pairs, only the one whose number is left in their place counts: distinct pairs without a sort, for a price that
    grows with h alone.
    """
    slots = scratch.view(torch.int64 if scratch.element_size() == 8 else torch.int32).view(-1)
    number = torch.arange(len(hits), device=hits.device, dtype=slots.dtype)
    slots[places] = number
    left_out = times[hits[:, 1]] * (slots[places] == number)
    return times.sum().repeat(len(scratch)).index_add_(0, hits[:, 0], left_out, alpha=-1)
