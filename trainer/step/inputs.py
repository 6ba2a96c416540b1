"""Sampled inputs of a step: the table rows of the batch, its negatives and other rows that the loss needs.

All random draws are made for the whole batch, with the same seed on all ranks: shared draws are identical, and each
rank keeps its share of the draws per row.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from weir.trainer.items.table import FIRST_ITEM, PADDING
from weir.trainer.negatives import Cached, PerRow, Pool, shared_pool
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.batches import Batch
from weir.trainer.step.model import Model, rescored_columns
from weir.trainer.step.seeds import Purpose, generator

__all__ = ["BatchRows", "RankShare", "SampledInputs", "sample_inputs"]


class BatchRows(NamedTuple):
    """Data of the b rows of a rank, which are the history positions that have a loss. Items are table rows.

    `positives` (b,) are the items to predict, `own` (b, N) the negatives of each row alone, `extra_positives` (b, M)
    further positives of the user, `forbidden` (b, F) items that must not be negatives, and `exposed` (b, E) items shown
    beside the positive, `PADDING` where an item is not a negative. Parts that the loss does not need are None.
    """

    positives: Tensor
    weights: Tensor
    user_counts: Tensor
    own: Tensor | None
    extra_positives: Tensor | None
    forbidden: Tensor | None
    exposed: Tensor | None


class RankShare(NamedTuple):
    """A rank's part of a step: `histories` (s, L), `positions` (b,) of real examples, and the data of their `rows`."""

    histories: Tensor
    positions: Tensor
    rows: BatchRows


class SampledInputs(NamedTuple):
    """Inputs of a step as table rows.

    `columns` (C,) are the negatives shared by all rows, `pool` the size of the batch, `cached` (S,) the items of the
    cache, `share` the rank's part, and `rescored` (N,) the columns that the second phase scores. `used` (m,) are all
    table rows that this rank uses, repetitions included: first the histories, then the positives, then all others.
    """

    columns: Tensor | None
    pool: Pool
    cached: Tensor | None
    share: RankShare
    used: Tensor
    rescored: Tensor | None = None


def sample_inputs(model: Model, batch: Batch, workers: Workers) -> SampledInputs:
    """Sample the inputs of the loss for a batch; all ranks get the same, except for `share`, `used`."""
    config, needs = model.config, model.config.loss.needs
    draw = generator(config.seed, Purpose.NEGATIVES, model.position.step)
    positives, real = batch.positives.flatten(), batch.real.flatten()
    columns = _columns(model, positives, real, draw) if needs.columns else None
    own = _own(model, positives, real, draw)
    here = _positions(workers.share(len(batch.positives)), batch)
    known = _by_position(batch.known, batch)
    extra = _extra_positives(config, positives, known, here, draw=draw, workers=workers)
    cached = None if model.cache is None else Cached(model.cache).draw(positives, real, draw).items
    mine = positives[here]
    forbidden = mine[:, None] if needs.masks_hits else None
    if forbidden is not None and config.negatives.mask_history:
        forbidden = torch.cat([forbidden, known], 1)
    weights, counts = (_by_position(values, batch)[here] for values in (batch.weights, batch.user_counts))
    exposed = _exposed(config, mine, known, batch) if batch.exposed.numel() else None
    own = None if own is None else own[here]
    used = _joined((batch.histories, mine, own, extra, exposed, columns, cached))
    positions = torch.nonzero(real[here])[:, 0]
    rows = BatchRows(mine, weights, counts, own, extra, forbidden, exposed)
    if len(positions) < len(mine):
        rows = BatchRows(*(None if part is None else part[positions] for part in rows))  # type: ignore[arg-type]
    share = RankShare(batch.histories, positions, rows)
    rescored = rescored_columns(config, columns, model.position.step)
    return SampledInputs(columns, Pool.of(positives, real), cached, share, used, rescored)


def _positions(here: slice, batch: Batch) -> slice:
    """Convert a slice of the batch's histories to the slice of their flattened positives, padding included."""
    each = _each(batch)
    return slice(here.start * each, here.stop * each)


def _columns(model: Model, positives: Tensor, real: Tensor, draw: torch.Generator) -> Tensor:
    """Return the table rows of the shared negatives (C,): drawn, or all items for a full softmax."""
    if model.config.loss.needs.negatives == "catalogue":
        return model.live
    drawn = shared_pool(model.config.negatives, model.log_q, model.in_use).draw(positives, real, draw)
    return drawn.items[drawn.real]


def _own(model: Model, positives: Tensor, real: Tensor, draw: torch.Generator) -> Tensor | None:
    """Draw the own negatives of each row (B, N), or candidates for Bayesian negatives; None if the loss needs none."""
    negatives = model.config.negatives
    if not (negatives.per_row and model.config.loss.needs.own):
        return None
    count = negatives.per_row * max(negatives.bayesian_candidates, 1)
    return PerRow(model.in_use, count).draw(positives, real, draw).items


def _extra_positives(
    config: TrainerConfig, positives: Tensor, known: Tensor, here: slice, *, draw: torch.Generator, workers: Workers
) -> Tensor | None:
    """Draw further positives of each row's user (b, M) from the known ones (b, K), or repeat the positive if none."""
    count = config.loss.extra_positives
    if not count or config.loss.needs.extra_positives == "none":
        return None
    # The number of draws depends on which positions have known positives, so all ranks need the mask of all positions.
    chance = torch.zeros(len(positives), known.shape[1])
    chance[here] = (known != PADDING).float().cpu()
    chance = workers.sum(chance)
    some = chance.any(1)
    chance[~some] = 1.0
    drawn = torch.multinomial(chance, count, replacement=True, generator=draw)[here].to(known.device)
    some = some[here, None].to(known.device)
    return torch.where(some, known.gather(1, drawn), positives[here, None])


def _joined(parts: Iterable[Tensor | None]) -> Tensor:
    """Return all parts that are not None as one flat tensor."""
    return torch.cat([part.flatten() for part in parts if part is not None])


def _exposed(config: TrainerConfig, positives: Tensor, known: Tensor, batch: Batch) -> Tensor:
    """Return the items shown beside each positive, (b, E); `PADDING` for known positives and items without a row."""
    liked = torch.cat([positives[:, None], known], 1) if config.negatives.mask_history else positives[:, None]
    exposed = _by_position(batch.exposed, batch)
    wrong = (exposed < FIRST_ITEM) | (exposed[:, :, None] == liked[:, None, :]).any(2)
    return exposed.masked_fill(wrong, PADDING)


def _by_position(values: Tensor, batch: Batch) -> Tensor:
    """Repeat the value of each history (B, ...) for all of its positives, padding included."""
    each = _each(batch)
    return values if each == 1 else values.repeat_interleave(each, 0)


def _each(batch: Batch) -> int:
    """Return the number of positives per history, padding included."""
    return math.prod(batch.positives.shape[1:])
