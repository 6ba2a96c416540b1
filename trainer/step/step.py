"""A training step: W ranks with B rows together compute the same as one rank with B rows.

Each rank scores its rows against the columns of the whole batch. Its loss is a sum over its rows, divided by the
number of rows of the whole batch, so the ranks' gradients add up: tower gradients on every rank, gradients of a table
row on the rank that owns it.
"""

import math
import time
from typing import NamedTuple, cast

import torch
from torch import Tensor

from weir.trainer.items.embeddings import Embeddings, Route
from weir.trainer.losses.inputs import LossInputs
from weir.trainer.losses.step_loss import step_loss
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.batches import Batch
from weir.trainer.step.inputs import sample_inputs
from weir.trainer.step.model import Model
from weir.trainer.step.seeds import seed_dropout
from weir.trainer.step.timer import Clock, StepTimer
from weir.trainer.step.vectors import StepVectors

__all__ = ["Gradients", "StepResult", "Sums", "compute_gradients", "sum_over_ranks", "train_step"]


class Sums(NamedTuple):
    """Sums over ranks: gradients `embeddings` (m, d) of this rank's table `rows` (m,), and of `shared` tensors.

    `lengths` are the norms of the row gradients of each rank.
    """

    rows: Tensor
    embeddings: Tensor
    lengths: list[float]
    shared: list[Tensor]


def sum_over_ranks(
    embeddings: Embeddings, route: Route, gradient: Tensor, shared: list[Tensor], workers: Workers
) -> Sums:
    """Sum over ranks the `gradient` (n, d) of a route's rows, and the tensors `shared`, all of one dtype.

    Each rank sums the rows of its shard and one part of the shared tensors, in the order of ranks. It then sends its
    part of the shared sums, and the norm of its row gradients, to all ranks.
    """
    if workers.world_size == 1:
        rows, sums = embeddings.summed(route, gradient)
        return Sums(rows, sums, [float(_length(sums))], shared)
    flat = torch.cat([tensor.flatten() for tensor in shared])
    lines, sums, part = route.add_beside(gradient, flat)
    length = _length(sums)[None].view(flat.dtype)
    sizes = [len(flat[share]) + len(length) for share in workers.shares(len(flat))]
    received = [sent.tensor_split([-len(length)]) for sent in workers.spread(torch.cat([part, length]), sizes)]
    total = torch.split(torch.cat([summed for summed, _ in received]), [tensor.numel() for tensor in shared])
    lengths = [float(norm.clone().view(torch.float64)) for _, norm in received]
    alike = [summed.view_as(tensor) for summed, tensor in zip(total, shared, strict=True)]
    return Sums(embeddings.places.rows_at(lines), sums, lengths, alike)


def _length(gradient: Tensor) -> Tensor:
    """Return the Euclidean norm of all rows (m, d) together, in float64, where squares of float32 cannot overflow."""
    # Row by row first: for all rows at once, torch would make a copy in float64.
    lengths: Tensor = torch.linalg.vector_norm(gradient, dim=1, dtype=torch.float64)
    return cast(Tensor, torch.linalg.vector_norm(lengths))


class StepResult(NamedTuple):
    """Report of a step: mean loss, number of masked accidental hits, whether a rank must stop, and seconds by part.

    `norm` is the norm of the first phase's gradients before clipping. A step is `refused` if loss or gradients are not
    finite: no parameter is updated then.
    """

    loss: float
    accidental_hits: int
    stop: bool
    seconds: dict[str, float]
    norm: float = 0.0
    clipped: bool = False
    refused: bool = False


class Gradients(NamedTuple):
    """Gradients of a step, summed over all ranks.

    `rows` (n,) are table rows in this rank's shard and `embeddings` (n, d) their gradients; `tower` and `second` are
    the gradients of the parameters of the first and the second phase. `totals` are loss, hits and number of ranks that
    must stop. `drawn` (c,) counts how often resampling drew each of the `candidates` (c,), which are table rows; both
    are empty without a cache. `lengths` are the norms of the row gradients of each rank.
    """

    rows: Tensor
    embeddings: Tensor
    tower: list[Tensor]
    totals: Tensor
    drawn: Tensor
    candidates: Tensor
    second: list[Tensor]
    lengths: list[float]


def train_step(
    model: Model, batch: Batch, workers: Workers, *, stop: bool = False, clock: Clock = time.perf_counter
) -> StepResult:
    """Train on one batch; a `stop` on any rank reaches all ranks.

    Loss and gradients are sums over all ranks, so all ranks refuse or clip a step together.
    """
    laps = StepTimer(clock)
    gradients = compute_gradients(model, batch, workers, stop=stop, laps=laps)
    loss, hits, stops = gradients.totals.tolist()
    norm, limit = _norm(gradients), model.config.optimizer.max_gradient_norm
    clipped = limit is not None and norm > limit
    refused = not all(map(math.isfinite, (loss, norm, _second_norm(gradients))))
    if not refused:
        _update(model, _scaled(gradients, limit / norm) if limit is not None and clipped else gradients)
    model.position.step += 1
    model.position.batch += 1
    laps.end("update")
    return StepResult(loss, round(hits), stops > 0, laps.seconds, norm, clipped and not refused, refused)


def _norm(gradients: Gradients) -> float:
    """Return the Euclidean norm of the first phase's gradients, in float64, where float32 squares cannot overflow."""
    return math.hypot(*gradients.lengths, _norm_of(gradients.tower))


def _second_norm(gradients: Gradients) -> float:
    """Return the norm of the second phase's gradients, which are clipped separately from the first phase's."""
    return _norm_of(gradients.second)


def _norm_of(gradients: list[Tensor]) -> float:
    """Return the norm of all gradients together; 0 for an empty list."""
    if not gradients:
        return 0.0
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    return float(torch.linalg.vector_norm(flat, dtype=torch.float64))


def _scaled(gradients: Gradients, factor: float) -> Gradients:
    """Return the gradients, with a factor applied to all gradients of the first phase."""
    tower = [factor * gradient for gradient in gradients.tower]
    return gradients._replace(embeddings=factor * gradients.embeddings, tower=tower)


def _update(model: Model, gradients: Gradients) -> None:
    """Update the parameters and the item cache."""
    model.optimizer.step(gradients.tower)
    if model.second is not None:
        model.second.move(gradients.second, model.config.optimizer.max_gradient_norm)
    settings = model.config.optimizer
    rates = settings.embedding_learning_rate, settings.embedding_memory, settings.embedding_decay
    model.embeddings.adagrad_step(gradients.rows, gradients.embeddings, *rates)
    if model.cache is not None:
        model.cache.update(gradients.candidates.repeat_interleave(gradients.drawn.long()))
        model.cache.redraw()


def compute_gradients(
    model: Model, batch: Batch, workers: Workers, *, stop: bool = False, laps: StepTimer | None = None
) -> Gradients:
    """Return the gradients of the whole batch's mean loss.

    Samples the inputs, embeds them, computes the loss of this rank's rows, and sums gradients over all ranks.

    Raises
    ------
    ValueError
        If `workers` and the item table have different numbers of ranks.
    """
    if model.embeddings.places.ranks != workers.world_size:
        raise ValueError(
            f"{workers.world_size} ranks share the batch, but {model.embeddings.places.ranks} the item table"
        )
    laps = laps or StepTimer()
    batch = batch.to(model.embeddings.weight.device)
    sampled = sample_inputs(model, batch, workers)
    laps.end("draw")
    rows, places = model.select(sampled.used)
    route = model.embeddings.route(rows)
    fetched = model.fetch(route, rows)
    leaf = fetched.embeddings.requires_grad_()
    seed_dropout(model.config.seed, model.position.step, workers.rank, leaf.device)
    if not model.tower.training:
        model.tower.train()
    vectors = StepVectors(model, fetched, rows, places)
    laps.end("rows")
    inputs = vectors.loss_inputs(sampled, batch, workers.rank, laps)
    result = step_loss(inputs, model.config)
    loss = (result.losses * sampled.share.rows.weights.to(result.losses)).sum() / batch.real.sum()
    laps.end("loss")
    first, second = model.optimizer.parameters, [] if model.second is None else model.second.optimizer.parameters
    own = torch.autograd.grad(loss, [leaf, *first, *second], allow_unused=True, materialize_grads=True)
    laps.end("backward")
    totals = torch.stack([loss.detach(), loss.new_tensor(_masked(inputs, model.config)), loss.new_tensor(float(stop))])
    candidates, drawn = vectors.drawn(sampled, result.drawn)
    sums = sum_over_ranks(model.embeddings, route, own[0], [*own[1:], totals, drawn], workers)
    *summed, totals, drawn = sums.shared
    tower, second = summed[: len(first)], summed[len(first) :]
    laps.end("sum")
    return Gradients(sums.rows, sums.embeddings, tower, totals, drawn, candidates, second, sums.lengths)


def _masked(inputs: LossInputs, config: TrainerConfig) -> int:
    """Return the number of masked accidental hits of this rank's rows.

    If the whole batch is used as negatives, each row's own positive does not count.
    """
    if inputs.hits is None:
        return 0
    whole = config.negatives.in_batch and config.negatives.in_batch_limit is None
    masked = len(inputs.hits) if inputs.times is None else int(inputs.times[inputs.hits[:, 1]].sum())
    return masked - whole * len(inputs.users)
