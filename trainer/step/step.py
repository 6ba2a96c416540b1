"""One step: W ranks with B/W rows each do what one rank with B rows would do.

Each rank scores its rows against the columns of the whole batch. Its loss is a sum over its rows, divided by the
number of rows of the whole batch, so the gradients of the ranks simply add up. All ranks know the whole batch, hence
the same set of table rows takes part everywhere: only their gradient is summed, in one collective with the tower's.
"""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from trainer.config import TrainerConfig
from trainer.items.table import PADDING
from trainer.negatives import accidental_hits, bayesian_choice, shared_pool
from trainer.ranks.workers import Workers
from trainer.step import objectives
from trainer.step.batches import Batch
from trainer.step.inputs import Participants, Rows, take_part
from trainer.step.model import Model
from trainer.step.objectives import Population, View
from trainer.step.seeds import Purpose, derive, generator
from trainer.towers import project, read_out

__all__ = ["Gradients", "StepResult", "compute_gradients", "train_step"]

Clock = Callable[[], float]


class StepResult(NamedTuple):
    """What a step tells: its mean loss, masked accidental hits, whether a rank must stop, and seconds by part.

    `norm` is that of all gradients together, before they are `clipped`. A step is `refused` where loss or norm are not
    finite: nothing was trained from its batch then.
    """

    loss: float
    accidental_hits: int
    stop: bool
    seconds: dict[str, float]
    norm: float = 0.0
    clipped: bool = False
    refused: bool = False


class Gradients(NamedTuple):
    """Sums over all ranks: of the table's `rows` (n,) as (n, d), of the towers by parameter, and the step's totals.

    `drawn` (n,) counts how often resampling drew each of the rows.
    """

    rows: Tensor
    embeddings: Tensor
    tower: list[Tensor]
    totals: Tensor
    drawn: Tensor


def train_step(
    model: Model, batch: Batch, workers: Workers, *, stop: bool = False, clock: Clock = time.perf_counter
) -> StepResult:
    """Learn from one batch; `stop` on any rank is told to all of them.

    Loss and gradients are sums over all ranks, so all of them refuse a step, or clip it, alike.
    """
    begun = clock()
    gradients = compute_gradients(model, batch, workers, stop=stop)
    computed = clock()
    loss, hits, stops = gradients.totals.tolist()
    norm = _norm([gradients.embeddings, *gradients.tower])
    limit = model.config.optimizer.max_gradient_norm
    clipped, refused = limit is not None and norm > limit, not (math.isfinite(loss) and math.isfinite(norm))
    if not refused:
        _descend(model, _scaled(gradients, limit / norm) if limit is not None and clipped else gradients)
    model.position.step += 1
    model.position.batch += 1
    seconds = {"gradients": computed - begun, "update": clock() - computed}
    return StepResult(loss, round(hits), stops > 0, seconds, norm, clipped and not refused, refused)


def _norm(gradients: list[Tensor]) -> float:
    """Return the Euclidean norm of all gradients together; in float64, which no square of float32 overflows."""
    return math.hypot(*(torch.linalg.vector_norm(one, dtype=torch.float64).item() for one in gradients))


def _scaled(gradients: Gradients, factor: float) -> Gradients:
    tower = [factor * one for one in gradients.tower]
    return gradients._replace(embeddings=factor * gradients.embeddings, tower=tower)


def _descend(model: Model, gradients: Gradients) -> None:
    """Move the parameters, and let the cache know what resampling drew."""
    for parameter, gradient in zip(_parameters(model), gradients.tower, strict=True):
        parameter.grad = gradient
    model.optimizer.step()
    model.embeddings.adagrad_step(gradients.rows, gradients.embeddings, model.config.optimizer.embedding_learning_rate)
    if model.cache is not None:
        model.cache.update(gradients.rows.repeat_interleave(gradients.drawn.long()))
        model.cache.redraw()


def compute_gradients(model: Model, batch: Batch, workers: Workers, *, stop: bool = False) -> Gradients:
    """Return the gradients of the whole batch's mean loss."""
    batch = batch.to(model.embeddings.weight.device)
    taking_part, used = take_part(model, batch, workers)
    rows = model.select(used)
    leaf = model.embeddings.weight[rows].requires_grad_()
    torch.manual_seed(derive(model.config.seed, Purpose.DROPOUT, model.position.step, workers.rank))
    model.tower.train()
    view, columns = _look(model, leaf, rows, taking_part, batch=batch, rank=workers.rank)
    result = objectives.evaluate(view, model.config)
    real = batch.real.sum()
    loss = (result.losses * taking_part.share.rows.weights.to(result.losses)).sum() / real
    found = torch.autograd.grad(loss, [leaf, *_parameters(model)], allow_unused=True, materialize_grads=True)
    totals = torch.stack([loss.detach(), _masked(view, model.config).to(loss), loss.new_tensor(float(stop))])
    drawn = torch.zeros_like(leaf[:, 0])
    if result.drawn is not None:
        drawn.index_add_(0, columns[result.drawn.flatten()], torch.ones_like(result.drawn.flatten(), dtype=drawn.dtype))
    embeddings, *tower, totals, drawn = _sum_together([*found, totals, drawn], workers)
    return Gradients(rows, embeddings, tower, totals, drawn)


def _parameters(model: Model) -> list[Tensor]:
    """Return what AdamW learns, of the user tower and, where there is one, of the item tower."""
    return [parameter for group in model.optimizer.param_groups for parameter in group["params"]]


def _look(
    model: Model, leaf: Tensor, rows: Tensor, taking_part: Participants, *, batch: Batch, rank: int
) -> tuple[View, Tensor]:
    """Return what the loss sees, and the places among `rows` of the pool's and the cache's columns (C + S,)."""
    config, share = model.config, taking_part.share
    # Known positives may not take part: their place is no column's, so that they mask nothing.
    place = torch.full((len(model.embeddings.weight),), -1, dtype=torch.long, device=rows.device)
    place[rows] = torch.arange(len(rows), device=rows.device)
    vectors = model.compose(leaf, rows)
    items = project(vectors, config.tower)
    histories = functional.embedding(place[share.histories], vectors)
    read = read_out(model.tower, histories, share.histories != PADDING, every=batch.positives.ndim > 1)
    users = project(read[share.positions], config.tower)
    columns, cached = place[taking_part.columns], place[taking_part.cached]
    log_q_pos, log_q_columns = _densities(model, taking_part)
    view = View(
        users=users,
        positives=items[place[share.rows.positives]],
        columns=items[columns],
        hits=accidental_hits(columns, place[share.rows.forbidden]),
        log_q_pos=log_q_pos,
        log_q_columns=log_q_columns,
        own=_own(model, users, items, place, share.rows),
        companions=items[place[share.rows.companions]],
        cached=items[cached],
        log_q_cached=model.log_q[taking_part.cached],
        population=_population(model, taking_part),
        temperature=config.tower.temperature,
        generator=generator(config.seed, Purpose.RESAMPLING, model.position.step, rank, device=rows.device),
        labels=batch.labels if config.loss.asks_for_labels else None,
    )
    return view, torch.cat([columns, cached])


def _own(model: Model, users: Tensor, items: Tensor, place: Tensor, rows: Rows) -> Tensor:
    """Return the vectors (b, N, d) of every row's own negatives, the chosen ones where candidates were drawn."""
    config, vectors = model.config, items[place[rows.own]]
    candidates = config.negatives.bayesian_candidates
    if not candidates:
        return vectors
    shape = len(rows.own), config.negatives.per_row, candidates
    scores = torch.einsum("bd,bnd->bn", users, vectors).view(shape) / config.tower.temperature
    pos = (users * items[place[rows.positives]]).sum(1, keepdim=True) / config.tower.temperature
    keep = (rows.own != rows.positives[:, None]).view(shape)
    chosen = bayesian_choice(
        pos.detach().expand(shape[:2]), scores.detach(), prior=model.log_q[rows.own].exp().view(shape), keep=keep
    )
    index = chosen[..., None, None].expand(*shape[:2], 1, vectors.shape[-1])
    return vectors.view(*shape, -1).gather(2, index)[:, :, 0]


def _densities(model: Model, taking_part: Participants) -> tuple[Tensor, Tensor]:
    """Return log Q at the positives (b,) and at the columns (C,), as a row sees the pool, where its own is certain."""
    config, share = model.config.negatives, taking_part.share
    sampler, others = shared_pool(config, model.log_q, model.live), taking_part.pool.others
    of_positive = sampler.log_q_own if config.correction == "improved" else sampler.log_q
    return of_positive(share.rows.positives, others), sampler.log_q(taking_part.columns, others)


def _population(model: Model, taking_part: Participants) -> Population:
    share, totals = taking_part.share, model.totals
    return Population(
        row_count=share.rows.user_counts,
        column_count=model.item_counts[share.rows.positives],
        positives=totals.positives,
        shape=(totals.users, totals.items),
    )


def _masked(view: View, config: TrainerConfig) -> Tensor:
    """Count the accidental hits; a row's own column, of which it has one in a whole batch, is no accident."""
    whole = config.negatives.in_batch and config.negatives.in_batch_limit is None
    return torch.tensor(len(view.hits) - whole * len(view.users))


def _sum_together(tensors: list[Tensor], workers: Workers) -> list[Tensor]:
    """Sum tensors over all ranks, in one collective."""
    flat = workers.sum(torch.cat([tensor.flatten() for tensor in tensors]))
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
