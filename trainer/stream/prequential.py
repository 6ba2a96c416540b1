"""Testing the state on a window that it has not seen."""

from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from contracts import WindowManifest
from trainer.items.table import FIRST_ITEM, PADDING, TableRows
from trainer.ranks.workers import Workers
from trainer.state.evaluation import Evaluation
from trainer.state.trainer_state import TrainerState
from trainer.step.batches import Examples, Positives
from trainer.step.seeds import Purpose, generator
from trainer.stream.ranking import Totals, rank_of
from trainer.towers import project

__all__ = ["evaluate"]

_ROWS: Final = 256


@torch.no_grad()
def evaluate(state: TrainerState, manifest: WindowManifest, found: Positives, workers: Workers) -> Evaluation:
    """Return the figures of up to `evaluation_examples` positives, ranked over all items of the table.

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
    totals = _rank_all(state, sampled.take(torch.arange(workers.rank, len(sampled), workers.world_size)))
    totals.sums = workers.sum(totals.sums.to(state.device)).cpu()
    return Evaluation.model_validate(facts | totals.means(len(sampled)))


def _sample(state: TrainerState, manifest: WindowManifest, found: Positives) -> Examples:
    draw = generator(state.config.seed, Purpose.EVALUATION, manifest.sequence)
    order = torch.randperm(len(found.items), generator=draw)[: state.config.evaluation_examples].numpy()
    return Examples.of(Positives(*(column[order] for column in found)), state.table)


def _rank_all(state: TrainerState, examples: Examples) -> Totals:
    state.tower.eval()
    live = state.table.live
    vectors = state.item_vectors(TableRows(np.arange(state.table.capacity)))
    items = project(vectors[torch.from_numpy(live).to(state.device)], state.config.tower)
    counts, log_q = state.counts[live], state.log_q.double().cpu().numpy()[live]
    popularity = torch.from_numpy(counts).to(state.device)
    column = torch.zeros(state.table.capacity, dtype=torch.long, device=state.device)
    column[torch.from_numpy(live)] = torch.arange(len(live), device=state.device)
    totals = Totals(state.config.evaluation_k)
    for first in range(0, len(examples), _ROWS):
        part = examples.take(torch.arange(first, min(first + _ROWS, len(examples))))
        history = part.histories.to(state.device)
        scores = _users(state, vectors, history) @ items.T
        seen = _columns_seen(state, history) if state.config.evaluation_filter_seen else None
        positives = part.positives.to(state.device)
        # Where the item has no row, it has no column either, and comes behind the last one.
        ranks = [
            rank_of(ranking, column[positives], seen).masked_fill(positives < FIRST_ITEM, len(live) + 1)
            for ranking in (scores, popularity.expand(len(scores), -1))
        ]
        totals.add(*ranks)
        shown = scores if seen is None else scores.masked_fill(seen, -torch.inf)
        totals.add_recommended(shown.topk(min(max(totals.cutoffs), len(live)))[1], log_q, counts)
    return totals


def _users(state: TrainerState, vectors: Tensor, histories: Tensor) -> Tensor:
    read = functional.embedding(histories, vectors)
    return project(state.tower(read, histories != PADDING), state.config.tower)


def _columns_seen(state: TrainerState, histories: Tensor) -> Tensor:
    """Mark the live rows (B, V) that stand in each history."""
    seen = torch.zeros(len(histories), state.table.capacity, dtype=torch.bool, device=histories.device)
    seen.scatter_(1, histories, True)  # noqa: FBT003 - the value to scatter
    return seen[:, torch.from_numpy(state.table.live).to(histories.device)]
