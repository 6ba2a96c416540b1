"""Sampled softmax over all columns of a batch, without the whole matrix of logits in memory.

Cost: the three matrix products of loss and gradient (logits, gradient of the queries, gradient of the items), and
memory for `chunk_rows` x N logits and O((B + N) d) numbers. The reference (`weir.trainer.losses.reference`) takes
matrices (B, N); the inputs here are compact: embeddings instead of logits, a list of masked pairs instead of a mask,
and log Q as one number per column.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from weir.trainer.losses import _numerics as checks
from weir.trainer.losses._numerics import widen
from weir.trainer.losses.chunked import Plan, pass_in_chunks
from weir.trainer.losses.fused import fused_pass, is_fused
from weir.trainer.losses.inputs import LossInputs
from weir.trainer.losses.reference import CORRECTIONS, log_without_positive
from weir.trainer.settings.trainer import TrainerConfig


def sampled_softmax_of(step: LossInputs, config: TrainerConfig) -> Tensor:
    """Return the losses (b,) of `loss.kind = sampled_softmax`."""
    return _of(step, config, config.negatives.correction)


def softmax_of(step: LossInputs, config: TrainerConfig) -> Tensor:
    """Return the losses (b,) of `loss.kind = full_softmax`, whose columns are all items, and of `info_nce`."""
    return _of(step, config, "none")


def _of(step: LossInputs, config: TrainerConfig, correction: str) -> Tensor:
    """Return the losses (b,) with a correction, from bfloat16 vectors where the fused kernels support them."""
    users, columns = step.users, step.given("columns")
    if config.precision == "bfloat16" and is_fused(users):
        users, columns = users.bfloat16(), columns.bfloat16()
    return sampled_softmax_in_batch(
        users,
        columns,
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
    """Return the losses of `sampled_softmax`, with all columns of the batch as negatives of every row.

    The logits of the negatives are query @ items.T / temperature. The gradient for equal row weights (a mean or a sum
    of the losses) is computed together with the loss; other weights cost a second pass in the backward.

    bfloat16 embeddings are multiplied as bfloat16, as are the softmax weights and row weights of the gradient; products
    are summed in float32, and everything else is float32. On a CPU this gives the same precision but no speed-up. Where
    fused GPU kernels support the embeddings (`fused.is_fused`), logits take no memory.

    Parameters
    ----------
    query
        Embeddings of the rows, (B, d), B >= 1.
    items
        Embeddings of the columns, (N, d): the items of the batch and all other shared negatives.
    pos
        Logits of the positives, (B,), already divided by the temperature; float32 or the dtype of `query`.
    hits
        (row, column) pairs to leave out, (H, 2), in any order, repeated or not: columns that are the row's positive,
        another known positive, or padding.
    log_q_pos
        log Q(p) of the positives, (B,): finite for ``"standard"``, below 0 for ``"improved"``. Not used by
        ``"none"``.
    log_q_neg
        log Q(d) of the columns, (N,), finite. ``"improved"`` converts it as `exclude_positive`
        does. Not used by ``"none"``.
    times
        Multiplicity of each column, (N,), integers from 1; None: all 1. Passing each frequent item once, with its
        multiplicity, gives the same sum for a smaller product.
    correction
        ``"none"``, ``"standard"`` or ``"improved"``, see `sampled_softmax`.
    temperature
        Divides the products of the embeddings; above 0.
    chunk_rows
        Rows whose logits are in memory at a time. Affects memory and speed; results change only by rounding.

    Returns
    -------
    Tensor
        Losses, (B,), in the dtype of `pos`. Rows without a negative have loss 0 and gradient 0. Differentiable once,
        in `query`, `items` and `pos`.

    Raises
    ------
    ValueError
        For an unknown correction, a missing density, NaN or infinities in a density, wrong shapes or dtypes, rows or
        columns out of range, `times` or `chunk_rows` below 1, or a temperature that is not positive.
    """
    _check_batch(query, items, pos, hits)
    checks.check_choice("correction", correction, CORRECTIONS)
    checks.check_positive("temperature", temperature)
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, got {chunk_rows}")
    dtype, (pos,) = pos.dtype, widen(pos)
    column_bias, row_bias = _biases(pos, len(items), log_q_pos, log_q_neg, correction)
    counted = _times(times, hits, len(items))
    plan = Plan(
        hits=hits.long(),
        times=counted,
        column_bias=column_bias if times is None else column_bias + counted.to(pos.dtype).log(),
        row_bias=row_bias,
        improved=correction == "improved",
        scale=1.0 / temperature,
        chunk_rows=chunk_rows,
    )
    losses: Tensor = _InBatch.apply(query, items, pos, plan)  # type: ignore[no-untyped-call]
    return losses.to(dtype)


class _InBatch(Function):
    """Autograd function of the losses; the forward also stores the gradients for equal row weights."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, items: Tensor, pos: Tensor, plan: Plan) -> Tensor:
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
    query: Tensor, items: Tensor, pos: Tensor, plan: Plan, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the losses (B,), and the gradients of their weighted sum with respect to query, items and pos.

    `weight` (B,) are the weights of the rows; without it, the first two gradients are empty tensors. In all three
    corrections, the gradient of a row's loss is c sum_d s_d items_d for the query and -c for the positive logit, where
    s is the softmax over the kept columns and c the probability of misclassification.
    """
    return (fused_pass if is_fused(query) else pass_in_chunks)(query, items, pos, plan, weight)


def _times(times: Tensor | None, hits: Tensor, columns: int) -> Tensor:
    """Return the multiplicity of each column, (N,), int64 on the device of the hits."""
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
    """Return the terms that the correction adds to each column's logits, (N,), and to each row's log-odds, (B,)."""
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
    """Return a density (size,); raises `ValueError` if it is missing, has another shape or NaN."""
    if density is None:
        raise ValueError(f"{name} must be given for correction={correction!r}, got None")
    checks.check_log_density(name, density)
    checks.check_shape(name, density, n=size)
    return density


def _check_batch(query: Tensor, items: Tensor, pos: Tensor, hits: Tensor) -> None:
    """Raise `ValueError` for wrong shapes or dtypes, or hits out of range."""
    may_be_wider = query.dtype == torch.bfloat16 and pos.dtype == torch.float32
    checks.check_logits("B+ d, N d, B", query=query, items=items, pos=pos.bfloat16() if may_be_wider else pos)
    checks.check_shape("hits", hits, H=None, pair=2)
    checks.check_index("hits[:, 0]", hits[:, 0], len(query))
    checks.check_index("hits[:, 1]", hits[:, 1], len(items))
