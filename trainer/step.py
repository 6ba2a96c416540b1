"""One step: W ranks with B/W rows each do what one rank with B rows would do.

Each rank scores its rows against the columns of the whole batch. Its loss is a sum over its rows, divided by the
number of rows of the whole batch, so the gradients of the ranks simply add up. All ranks know the whole batch, hence
the same set of table rows takes part everywhere: only their gradient is summed, in one collective with the tower's.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from trainer.batches import Batch
from trainer.distributed import Workers
from trainer.item_table import PADDING
from trainer.losses import exclude_positive, sampled_softmax
from trainer.negatives import draw_uniform, keep_mask, log_density
from trainer.seeds import Purpose, derive, generator
from trainer.state import TrainerState
from trainer.towers import project

__all__ = ["Gradients", "StepResult", "compute_gradients", "train_step"]

Clock = Callable[[], float]


class StepResult(NamedTuple):
    """What a step tells: its mean loss, masked accidental hits, seconds by part, and whether a rank must stop."""

    loss: float
    accidental_hits: int
    stop: bool
    seconds: dict[str, float]


class Gradients(NamedTuple):
    """Sums over all ranks: of the table's `rows` (n,) as (n, d), of the tower by parameter, and the step's totals."""

    rows: Tensor
    embeddings: Tensor
    tower: list[Tensor]
    totals: Tensor


class _Share(NamedTuple):
    """A rank's rows (b) and the columns (c) of the batch, as numbers in [0, n) of the n distinct rows used."""

    positives: Tensor
    histories: Tensor
    mask: Tensor
    real: Tensor
    columns: Tensor
    columns_real: Tensor


def train_step(
    state: TrainerState, batch: Batch, workers: Workers, *, stop: bool = False, clock: Clock = time.perf_counter
) -> StepResult:
    """Learn from one batch; `stop` on any rank is told to all of them."""
    begun = clock()
    gradients = compute_gradients(state, batch, workers, stop=stop)
    computed = clock()
    for parameter, gradient in zip(state.tower.parameters(), gradients.tower, strict=True):
        parameter.grad = gradient
    state.optimizer.step()
    state.embeddings.descend(gradients.rows, gradients.embeddings, state.config.optimizer.embedding_learning_rate)
    state.position.step += 1
    state.position.batch += 1
    loss, hits, stops = gradients.totals.tolist()
    seconds = {"gradients": computed - begun, "update": clock() - computed}
    return StepResult(loss, round(hits), stops > 0, seconds)


def compute_gradients(state: TrainerState, batch: Batch, workers: Workers, *, stop: bool = False) -> Gradients:
    """Return the gradients of the whole batch's mean loss."""
    batch = batch.to(state.device)
    rows, share = _take_part(state, batch, workers)
    leaf = state.embeddings.weight[rows].requires_grad_()
    torch.manual_seed(derive(state.config.seed, Purpose.DROPOUT, state.position.step, workers.rank))
    state.tower.train()
    losses, hits = _losses(state, leaf, state.log_q[rows], share, int(batch.real.sum()))
    weights = batch.weights[workers.share(len(batch.real))].to(losses.dtype)
    loss = (losses * weights * share.real).sum() / batch.real.sum()
    found = torch.autograd.grad(loss, [leaf, *state.tower.parameters()], allow_unused=True, materialize_grads=True)
    totals = torch.stack([loss.detach(), hits.to(loss.dtype), loss.new_tensor(float(stop))])
    embeddings, *tower, totals = _sum_together([*found, totals], workers)
    return Gradients(rows, embeddings, tower, totals)


def _take_part(state: TrainerState, batch: Batch, workers: Workers) -> tuple[Tensor, _Share]:
    """Return the distinct table rows (n,) of the step and this rank's share of it."""
    config, size = state.config, len(batch.positives)
    draw = generator(config.seed, Purpose.NEGATIVES, state.position.step)
    live = torch.from_numpy(state.table.live)
    uniform = draw_uniform(live, config.negatives.uniform, draw).to(state.device)
    used = torch.cat([batch.positives, uniform, batch.histories.flatten()])
    rows, place = torch.unique(used, return_inverse=True)
    first = 0 if config.negatives.in_batch else size
    here, last = workers.share(size), size + len(uniform)
    columns_real = torch.cat([batch.real, torch.ones_like(uniform, dtype=torch.bool)])[first:]
    histories = place[last:].view(batch.histories.shape)[here]
    mask = (batch.histories != PADDING)[here]
    return rows, _Share(place[:size][here], histories, mask, batch.real[here], place[first:last], columns_real)


def _losses(state: TrainerState, leaf: Tensor, log_q: Tensor, share: _Share, in_batch: int) -> tuple[Tensor, Tensor]:
    """Return the losses (b,) of this rank's rows and the number of accidental hits that were masked."""
    config = state.config
    user = project(state.tower(functional.embedding(share.histories, leaf), share.mask), config.tower)
    items = project(leaf, config.tower)
    pos = (user * items[share.positives]).sum(1) / config.tower.temperature
    neg = user @ items[share.columns].T / config.tower.temperature
    forbidden = share.positives[:, None]
    if config.negatives.mask_history:
        forbidden = torch.cat([forbidden, share.histories], 1)
    keep = keep_mask(share.columns, share.columns_real, forbidden)
    density = log_density(config.negatives, log_q, in_batch, len(state.table))
    log_q_pos, log_q_neg = density[share.positives], density[share.columns]
    correction = config.negatives.correction
    if correction == "improved":
        log_q_neg = exclude_positive(log_q_neg, log_q_pos)
    losses = sampled_softmax(pos, neg, log_q_pos=log_q_pos, log_q_neg=log_q_neg, keep=keep, correction=correction)
    masked = (share.columns_real & ~keep)[share.real].sum()
    # A row's own column is no accident.
    return losses, masked - share.real.sum() * config.negatives.in_batch


def _sum_together(tensors: list[Tensor], workers: Workers) -> list[Tensor]:
    """Sum tensors over all ranks, in one collective."""
    flat = workers.sum(torch.cat([tensor.flatten() for tensor in tensors]))
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
