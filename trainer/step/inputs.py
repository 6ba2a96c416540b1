"""Who takes part in a step: the rows of the batch, the negatives they share or own, further positives, the cache.

Everything is drawn for the whole batch from a generator that all ranks seed alike, so all of them know the same table
rows to take part; a rank then keeps its share of the batch.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from trainer.config import TrainerConfig
from trainer.items.table import PADDING
from trainer.negatives import Cached, PerRow, Pool, shared_pool
from trainer.ranks.workers import Workers
from trainer.step.batches import Batch
from trainer.step.model import Model
from trainer.step.seeds import Purpose, generator

__all__ = ["Participants", "Share", "take_part"]


class Rows(NamedTuple):
    """What belongs to the b positions that are learnt from.

    Table rows: the `positives` (b,), the negatives of every row's `own` (b, N), its `companions` (b, M) and the items
    that are `forbidden` as negatives (b, F); and the `weights` and `user_counts` (b,).
    """

    positives: Tensor
    own: Tensor
    companions: Tensor
    forbidden: Tensor
    weights: Tensor
    user_counts: Tensor


class Share(NamedTuple):
    """A rank's `histories` (s, L), which of the `positions` read out of them are learnt from (b,), and their `rows`."""

    histories: Tensor
    positions: Tensor
    rows: Rows


class Participants(NamedTuple):
    """A step's shared negatives `columns` (C,), the batch's `pool`, the `cached` items (S,), and a rank's share."""

    columns: Tensor
    pool: Pool
    cached: Tensor
    share: Share


def take_part(model: Model, batch: Batch, workers: Workers) -> tuple[Participants, Tensor]:
    """Return who takes part, and every table row (m,), repeated or not, that any rank uses in the step."""
    config = model.config
    draw = generator(config.seed, Purpose.NEGATIVES, model.position.step)
    positives, real = batch.positives.flatten(), batch.real.flatten()
    columns = _columns(model, positives, real, draw)
    per_row = config.negatives.per_row * max(config.negatives.bayesian_candidates, 1)
    own = PerRow(model.live, per_row).draw(positives, real, draw).items if per_row else positives[:, None][:, :0]
    known = _of_positions(batch.known, batch)
    companions = _companions(config, positives, known, draw)
    cached = positives[:0] if model.cache is None else Cached(model.cache).draw(positives, real, draw).items
    used = torch.cat([tensor.flatten() for tensor in (positives, batch.histories, columns, own, companions, cached)])
    forbidden = positives[:, None]
    if config.negatives.mask_history:
        forbidden = torch.cat([forbidden, known], 1)
    weights, counts = (_of_positions(values, batch) for values in (batch.weights, batch.user_counts))
    rows = Rows(positives, own, companions, forbidden, weights, counts)
    share = _share(rows, batch, workers.share(len(batch.positives)))
    return Participants(columns, Pool.of(positives, real), cached, share), used


def _columns(model: Model, positives: Tensor, real: Tensor, draw: torch.Generator) -> Tensor:
    if model.config.loss.kind == "full_softmax":
        return model.live
    drawn = shared_pool(model.config.negatives, model.log_q, model.live).draw(positives, real, draw)
    return drawn.items[drawn.real]


def _companions(config: TrainerConfig, positives: Tensor, known: Tensor, draw: torch.Generator) -> Tensor:
    """Draw further positives of the same user (B, M) among those known; her only one stands for itself."""
    count = config.loss.companions
    if not count:
        return known[:, :0]
    chance = (known != PADDING).float().cpu()
    some = chance.any(1)
    chance[~some] = 1.0
    drawn = known.gather(1, torch.multinomial(chance, count, replacement=True, generator=draw).to(known.device))
    return torch.where(some[:, None].to(known.device), drawn, positives[:, None])


def _of_positions(values: Tensor, batch: Batch) -> Tensor:
    """Repeat what a history has (B, ...) for every position that is read out of it."""
    return values.repeat_interleave(batch.positives[0].numel(), 0)


def _share(rows: Rows, batch: Batch, here: slice) -> Share:
    """Keep the real positions of the histories that are this rank's."""
    read_out = batch.positives[0].numel()
    first, last = here.start * read_out, here.stop * read_out
    positions = torch.nonzero(batch.real.flatten()[first:last])[:, 0]
    return Share(batch.histories[here], positions, Rows(*(tensor[first:last][positions] for tensor in rows)))
