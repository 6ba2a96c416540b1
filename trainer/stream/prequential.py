"""Prequential evaluation: test the state on a window before it trains on it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from contracts import WindowManifest
from trainer.items.table import FIRST_ITEM, TableRows
from trainer.ranking import MetricSums, rank_of, user_vectors
from trainer.ranks.workers import Workers
from trainer.state.evaluation import Evaluation
from trainer.state.trainer_state import TrainerState
from trainer.step.batches import Examples, Positives
from trainer.step.seeds import Purpose, generator
from trainer.towers import project

__all__ = ["ScoredBlock", "evaluate", "scored_blocks"]

_ROWS: Final = 256


@torch.no_grad()
def evaluate(state: TrainerState, manifest: WindowManifest, found: Positives, workers: Workers) -> Evaluation:
    """Return the metrics of up to `evaluation_examples` positives, ranked over all items of the table.

    Call it before `TrainerState.ingest_window`: popularity and novelty must be those of the moment before the window.
    """
    sampled = _sample(state, manifest, found)
    known = int((sampled.positives >= FIRST_ITEM).sum())
    facts = {
        "window": str(manifest.name),
        "sequence": manifest.sequence,
        "step": state.position.step,
        "events": len(sampled),
        "known": known,
        "items": len(state.table),
        "seen_filtered": state.config.evaluation_filter_seen,
    }
    if not len(sampled) or not len(state.table):
        return Evaluation.model_validate(facts)
    sums = _metric_sums(state, sampled.take(torch.arange(workers.rank, len(sampled), workers.world_size)))
    sums.sums = workers.sum(sums.sums.to(state.device)).cpu()
    return Evaluation.model_validate(facts | sums.means(len(sampled)))


def _sample(state: TrainerState, manifest: WindowManifest, found: Positives) -> Examples:
    draw = generator(state.config.seed, Purpose.EVALUATION, manifest.sequence)
    order = torch.randperm(len(found.items), generator=draw)[: state.config.evaluation_examples].numpy()
    return Examples.of(Positives(*(column[order] for column in found)), state.table)


def _metric_sums(state: TrainerState, examples: Examples) -> MetricSums:
    live = state.table.live
    counts, log_q = state.counts[live], state.log_q.double().cpu().numpy()[live]
    places = torch.empty(len(live), dtype=torch.int64, device=state.device)
    places[torch.from_numpy(counts).to(state.device).argsort(descending=True, stable=True)] = torch.arange(
        1, len(live) + 1, device=state.device
    )
    sums = MetricSums(state.config.evaluation_k)
    for block in scored_blocks(state, examples):
        sums.add(block.ranks(), block.ranks_in(places))
        shown = block.scores if block.seen is None else block.scores.masked_fill(block.seen, -torch.inf)
        sums.add_recommended(shown.topk(min(max(sums.cutoffs), len(live)))[1], log_q, counts)
    return sums


@dataclass(frozen=True, eq=False)
class ScoredBlock:
    """Scores (n, V) of the table's items for n examples.

    `targets` (n,) are the columns of their positives, -1 for an item without a row; `seen` (n, V) marks the items to
    leave out of the rankings.
    """

    scores: Tensor
    targets: Tensor
    seen: Tensor | None

    def ranks(self) -> Tensor:
        """Return the ranks (n,) of the positives by score; an item without a row ranks below everything."""
        ranks = rank_of(self.scores, self.targets.clamp(min=0), self.seen)
        return ranks.masked_fill(self.targets < 0, self.scores.shape[1] + 1)

    def ranks_in(self, places: Tensor) -> Tensor:
        """Return the ranks (n,) of the positives where all rows have the same order: `places` (V,), from 1."""
        own = places[self.targets.clamp(min=0)]
        if self.seen is not None:
            own = own - (self.seen & (places < own[:, None])).sum(1)
        return own.masked_fill(self.targets < 0, len(places) + 1)


@torch.no_grad()
def scored_blocks(state: TrainerState, examples: Examples) -> Iterator[ScoredBlock]:
    """Score all items of the table for the examples, block by block; with `evaluation_filter_seen`, mark those seen."""
    state.tower.eval()
    config, live = state.config.tower, state.live
    vectors = state.item_vectors(TableRows(np.arange(state.table.capacity)))
    items = project(vectors[live], config)
    column = torch.full((state.table.capacity,), -1, device=state.device)
    column[live] = torch.arange(len(live), device=state.device)
    for first in range(0, len(examples), _ROWS):
        part = examples.take(torch.arange(first, min(first + _ROWS, len(examples))))
        histories, positives = part.histories.to(state.device), part.positives.to(state.device)
        scores = user_vectors(state.tower, config, vectors, histories) @ items.T
        seen = None
        if state.config.evaluation_filter_seen:
            rows = torch.zeros(len(part), len(vectors), dtype=torch.bool, device=state.device)
            seen = rows.scatter_(1, histories, value=True)[:, live]
        yield ScoredBlock(scores, column[positives], seen)
