"""Sampled softmax over all columns of a batch, without the whole matrix of logits in memory.

Cost: the three products that loss and gradient need (logits, gradient of the queries, gradient of the items), and
memory for `chunk_rows` x N logits and O((B + N) d): O(B + N), as `chunk_rows` does not grow with B. What the
reference (`trainer.losses.reference`) takes as (B, N) matrices is given here in the small form that training has it in:
embeddings instead of logits, a list of masked pairs instead of a mask, and log Q as one number per column.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from trainer.config import TrainerConfig
from trainer.losses import _checks as checks
from trainer.losses._logspace import softplus, widen
from trainer.losses.densities import CORRECTIONS, log_without_positive
from trainer.losses.inputs import LossInputs


def sampled_softmax_of(step: LossInputs, config: TrainerConfig) -> Tensor:
    """Return the losses (b,) of `loss.kind = sampled_softmax`."""
    return _of(step, config.negatives.correction)


def softmax_of(step: LossInputs, _: TrainerConfig) -> Tensor:
    """Return the losses (b,) of `loss.kind = full_softmax`, whose columns are all items, and of ``info_nce``."""
    return _of(step, "none")


def _of(step: LossInputs, correction: str) -> Tensor:
    return sampled_softmax_in_batch(
        step.users,
        step.given("columns"),
        pos=step.pos,
        hits=step.given("hits"),
        log_q_pos=step.log_q_pos,
        log_q_neg=step.log_q_columns,
        times=step.times,
        correction=correction,
        temperature=step.temperature,
    )


def sampled_softmax_in_batch(
    query: Tensor,
    items: Tensor,
    *,
    pos: Tensor,
    hits: Tensor,
    log_q_pos: Tensor | None = None,
    log_q_neg: Tensor | None = None,
    times: Tensor | None = None,
    correction: str = "improved",
    temperature: float = 1.0,
    chunk_rows: int = 256,
) -> Tensor:
    """`sampled_softmax` of `pos` against the logits query @ items.T / temperature: every column is a negative.

    The gradient is computed together with the loss, for rows of equal weight: what a mean or a sum of the losses asks
    for. Other weights are exact too, and cost a second pass in the backward.

    bfloat16 embeddings are multiplied as such, the softmax weights and row weights of the gradient rounded for it;
    products are summed in float32, and everything else is float32. A GPU has instructions for it (this path has not
    been run on one); on a CPU it has the same precision and no gain in speed.

    Parameters
    ----------
    query
        Embeddings of the rows, (B, d), B >= 1.
    items
        Embeddings of the columns, (N, d): the items of the batch and all other shared negatives.
    pos
        Logits of the positives, (B,), already divided by the temperature.
    hits
        (row, column) pairs to leave out, (H, 2), in any order, repeated or not: the columns that hold the row's
        positive, its other known positives, padding.
    log_q_pos
        log Q(p) of the positives, (B,): finite for ``"standard"``, below 0 for ``"improved"``. Not used by
        ``"none"``.
    log_q_neg
        log Q(d) of the columns, (N,), finite. ``"improved"`` takes the row's positive out of it, as `exclude_positive`
        does. Not used by ``"none"``.
    times
        How many equal columns each one stands for, (N,), integers from 1; None: itself. A batch holds frequent items
        often: each once, with its number, is the same sum for a smaller product.
    correction
        ``"none"``, ``"standard"`` or ``"improved"``, see `sampled_softmax`.
    temperature
        Divides the products of the embeddings; above 0.
    chunk_rows
        Rows whose logits exist at the same time. Changes memory and speed; the result only by rounding.

    Returns
    -------
    Tensor
        Losses, (B,), in the dtype of `query`. Rows without a negative have loss 0 and gradient 0. Differentiable once,
        in `query`, `items` and `pos`.

    Raises
    ------
    ValueError
        For an unknown correction, a density that it needs and that is missing, NaN or infinities in it, wrong shapes or
        dtypes, rows or columns out of range, `times` or `chunk_rows` below 1, or a temperature that is not positive.
    """
    _check_batch(query, items, pos, hits)
    checks.check_choice("correction", correction, CORRECTIONS)
    checks.check_positive("temperature", temperature)
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, got {chunk_rows}")
    (pos,) = widen(pos)
    column_bias, row_bias = _biases(pos, len(items), log_q_pos, log_q_neg, correction)
    counted = _times(times, hits, len(items))
    plan = _Plan(
        hits=_by_row(hits.long()),
        times=counted,
        column_bias=column_bias if times is None else column_bias + counted.to(pos.dtype).log(),
        row_bias=row_bias,
        improved=correction == "improved",
        scale=1.0 / temperature,
        chunk_rows=chunk_rows,
    )
    losses: Tensor = _InBatch.apply(query, items, pos, plan)  # type: ignore[no-untyped-call]
    return losses.to(query.dtype)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a pass needs with the embeddings.

    `hits` (H, 2) are the pairs outside the sum, by row; column d counts `times` (N,). The log-odds of a row are
    logsumexp over its kept columns of (logit + column_bias), less the positive's logit, plus row_bias.
    """

    hits: Tensor
    times: Tensor
    column_bias: Tensor
    row_bias: Tensor
    improved: bool
    scale: float
    chunk_rows: int


class _InBatch(Function):
    """Losses of all rows; their gradient for equal row weights is made in the forward and kept."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, items: Tensor, pos: Tensor, plan: _Plan) -> Tensor:
        if not any(ctx.needs_input_grad):
            return _pass(query, items, pos, plan, None)[0]
        losses, *gradients = _pass(query, items, pos, plan, torch.ones_like(pos))
        ctx.plan = plan
        ctx.save_for_backward(query, items, pos, *gradients)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, items, pos, *gradients = ctx.saved_tensors
        if bool((weight == weight[0]).all()):
            gradients = [weight[0] * gradient for gradient in gradients]
        else:
            _, *gradients = _pass(query, items, pos, ctx.plan, weight)
        of_query, of_items, of_pos = gradients
        return of_query.to(query.dtype), of_items.to(items.dtype), of_pos, None


def _pass(
    query: Tensor, items: Tensor, pos: Tensor, plan: _Plan, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the losses and, for given row weights, the gradients of their weighted sum (else empty tensors).

    The gradient of a row is c sum_d s_d items_d for its query and -c for its positive logit, with s the softmax over
    its kept columns and c the chance to misclassify, in all three corrections.
    """
    losses, pull = torch.empty_like(pos), torch.empty_like(pos)
    query_gradient, items_gradient = torch.empty(0), torch.empty(0)
    if weight is not None:
        query_gradient, items_gradient = (torch.zeros_like(one, dtype=pos.dtype) for one in (query, items))
    # One buffer for all chunks: an allocator may keep several of those that come and go.
    buffer = pos.new_empty(min(plan.chunk_rows, len(query)), len(items))
    for rows, hits in _chunks(plan, len(query)):
        exponentials = buffer[: rows.stop - rows.start]
        kept = _count_kept(hits, plan.times, exponentials)
        exponentials.copy_(plan.column_bias)
        _add_product(exponentials, query[rows], items.T, plan.scale)
        exponentials.view(-1).index_fill_(0, _places(hits, exponentials), -torch.inf)
        peak = exponentials.amax(1).masked_fill_(kept == 0, 0.0)
        total = exponentials.sub_(peak[:, None]).exp_().sum(1).clamp_(min=torch.finfo(pos.dtype).tiny)
        log_odds = total.log() + (peak - pos[rows]) + plan.row_bias[rows]
        losses[rows], pull[rows] = _row_loss(log_odds, kept, plan.improved)
        if weight is not None:
            pull[rows] *= weight[rows]
            share = (plan.scale * pull[rows] / total)[:, None]
            factors = exponentials.to(query.dtype)
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


def _row_loss(log_odds: Tensor, kept: Tensor, improved: bool) -> tuple[Tensor, Tensor]:
    """Return the loss of each row and the size of its gradient, both 0 for rows without a negative."""
    empty = kept == 0
    if improved:
        pull = torch.sigmoid(log_odds - kept.clamp(min=1).to(log_odds.dtype).log())
        loss = pull * log_odds
    else:
        pull, loss = torch.sigmoid(log_odds), softplus(log_odds)
    return loss.masked_fill(empty, 0.0), pull.masked_fill(empty, 0.0)


def _by_row(hits: Tensor) -> Tensor:
    """Return pairs (H, 2) in the order of their rows, as a step has them already."""
    rows = hits[:, 0]
    return hits if bool((rows[1:] >= rows[:-1]).all()) else hits[torch.argsort(rows)]


def _chunks(plan: _Plan, rows: int) -> list[tuple[slice, Tensor]]:
    """Split the rows; each chunk comes with its pairs (h, 2), whose rows are counted from its first."""
    starts = [*range(0, rows, plan.chunk_rows), rows]
    bounds = torch.searchsorted(plan.hits[:, 0].contiguous(), torch.tensor(starts, device=plan.hits.device)).tolist()
    return [
        (slice(start, stop), plan.hits[low:high] - plan.hits.new_tensor([start, 0]))
        for (start, stop), (low, high) in zip(itertools.pairwise(starts), itertools.pairwise(bounds), strict=True)
    ]


def _places(hits: Tensor, logits: Tensor) -> Tensor:
    """Return where pairs (h, 2) are in the memory of a chunk's logits (rows, N), (h,)."""
    return hits[:, 0] * logits.shape[1] + hits[:, 1]


def _count_kept(hits: Tensor, times: Tensor, scratch: Tensor) -> Tensor:
    """Return the columns that each row of a chunk keeps, (rows,), where pairs (h, 2) are left out, repeated or not.

    Column d counts `times` (N,). `scratch` (rows, N) is overwritten. Of equal pairs, only the one whose number is left
    in their place counts: distinct pairs without a sort, for a price that grows with h alone.
    """
    slots = scratch.view(torch.int64 if scratch.element_size() == 8 else torch.int32).view(-1)
    places, number = _places(hits, scratch), torch.arange(len(hits), device=hits.device, dtype=slots.dtype)
    slots[places] = number
    rows, columns = hits[slots[places] == number].T
    return times.sum().repeat(len(scratch)).index_add_(0, rows, times[columns], alpha=-1)


def _times(times: Tensor | None, hits: Tensor, columns: int) -> Tensor:
    """Return how often each column counts, (N,), int64 on the device of the hits."""
    if times is None:
        return torch.ones(columns, dtype=torch.int64, device=hits.device)
    checks.check_shape("times", times, N=columns)
    if times.is_floating_point():
        raise ValueError(f"times must hold integers, got {times.dtype}")
    if bool((times < 1).any()):
        raise ValueError(f"times must be at least 1, got {int(times.min())}")
    return times.to(torch.int64)


def _biases(
    pos: Tensor, columns: int, log_q_pos: Tensor | None, log_q_neg: Tensor | None, correction: str
) -> tuple[Tensor, Tensor]:
    """Return what the correction adds to the logits of each column, (N,), and to the log-odds of each row, (B,)."""
    if correction == "none":
        return pos.new_zeros(columns), torch.zeros_like(pos)
    of_rows = _density("log_q_pos", log_q_pos, len(pos), correction).to(pos.dtype)
    of_columns = _density("log_q_neg", log_q_neg, columns, correction).to(pos.dtype)
    checks.check_finite("log_q_neg", of_columns)
    if correction == "standard":
        checks.check_finite("log_q_pos", of_rows)
        return -of_columns, of_rows
    return -of_columns, log_without_positive(of_rows)


def _density(name: str, density: Tensor | None, size: int, correction: str) -> Tensor:
    if density is None:
        raise ValueError(f"{name} must be given for correction={correction!r}, got None")
    checks.check_log_density(name, density)
    checks.check_shape(name, density, n=size)
    return density


def _check_batch(query: Tensor, items: Tensor, pos: Tensor, hits: Tensor) -> None:
    checks.check_logits("B+ d, N d, B", query=query, items=items, pos=pos)
    checks.check_shape("hits", hits, H=None, pair=2)
    checks.check_index("hits[:, 0]", hits[:, 0], len(query))
    checks.check_index("hits[:, 1]", hits[:, 1], len(items))
