"""Prequential evaluation: test the state on a window before it trains on it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from contracts import WindowManifest
from trainer.items.table import FIRST_ITEM, PADDING, TableRows
from trainer.ranking import MetricSums, distinct, highest, rank_of, user_vectors
from trainer.ranks.workers import Workers
from trainer.state.evaluation import Evaluation
from trainer.state.trainer_state import TrainerState
from trainer.step.batches import Examples
from trainer.step.positives import Positives
from trainer.step.seeds import Purpose, generator
from trainer.towers import project

__all__ = ["ScoredBlock", "evaluate", "scored_blocks"]

_BLOCK: Final = 1 << 25
"""Scores held at a time, 128 MB, unless the bounds of its rows say otherwise."""

_CHUNK: Final = 1 << 14
"""Items whose vectors are made at a time: with 64 dimensions 4 MB, which stay in the processor's cache."""
_FEWEST_ROWS: Final = 16
"""Fewer make the product of the matrices slow."""

_MOST_ROWS: Final = 256
"""More gain nothing."""


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
    share = sampled.take(torch.arange(workers.rank, len(sampled), workers.world_size))
    sums = _metric_sums(state, share, -(-len(sampled) // workers.world_size))
    sums.sums = workers.sum(sums.sums.to(state.device)).cpu()
    return Evaluation.model_validate(facts | sums.means(len(sampled)))


def _sample(state: TrainerState, manifest: WindowManifest, found: Positives) -> Examples:
    draw = generator(state.config.seed, Purpose.EVALUATION, manifest.sequence)
    order = torch.randperm(len(found.items), generator=draw)[: state.config.evaluation_examples].numpy()
    return Examples.of(Positives(*(column[order] for column in found)), state.table)


def _metric_sums(state: TrainerState, examples: Examples, most: int) -> MetricSums:
    counts, log_q = state.counts[state.live], state.log_q[state.live]
    places = torch.empty_like(counts, dtype=torch.int64)
    places[counts.argsort(descending=True, stable=True)] = torch.arange(1, len(counts) + 1, device=state.device)
    sums, facts = MetricSums(state.config.evaluation_k), [one.double().cpu().numpy() for one in (log_q, counts)]
    for block in scored_blocks(state, examples, most):
        sums.add(block.ranks(), block.ranks_in(places))
        sums.add_recommended(block.best(max(sums.cutoffs)), *facts)
    return sums


@dataclass(frozen=True, eq=False)
class ScoredBlock:
    """Scores (n, V) of the table's items for n examples; the next block takes their memory.

    `targets` (n,) are the columns of their positives, -1 for an item without a row; `seen` (n, L) those of the items to
    leave out of the rankings, possibly repeated, -1 for none.
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
            seen = distinct(self.seen)
            own = own - ((seen >= 0) & (places[seen.clamp(min=0)] < own[:, None])).sum(1)
        return own.masked_fill(self.targets < 0, len(places) + 1)

    def best(self, k: int) -> Tensor:
        """Return the columns (n, min(k, V)) of the highest scores, best first; those seen come after all others."""
        if self.seen is None:
            return highest(self.scores, k)[1]
        values, columns = highest(self.scores, k + self.seen.shape[1])
        hidden = (columns[:, :, None] == self.seen[:, None, :]).any(2)
        order = values.masked_fill(hidden, -torch.inf).topk(min(k, columns.shape[1])).indices
        return columns.gather(1, order)


@torch.no_grad()
def scored_blocks(state: TrainerState, examples: Examples, most: int = 0) -> Iterator[ScoredBlock]:
    """Score all items of the table for the examples, block by block; with `evaluation_filter_seen`, mark those seen.

    `most` are the examples of the rank that has most: for each block of its, all ranks fetch the items together.
    """
    state.tower.eval()
    live = state.live
    column = torch.full((state.table.capacity,), -1, device=state.device)
    column[live] = torch.arange(len(live), device=state.device)
    rows = min(max(_BLOCK // len(live), _FEWEST_ROWS), _MOST_ROWS)
    memory = state.embeddings.weight.new_empty(min(rows, len(examples)), len(live))
    for first in range(0, max(most, len(examples)), rows):
        part = examples.take(torch.arange(len(examples))[first : first + rows])
        histories, positives = part.histories.to(state.device), part.positives.to(state.device)
        scores = _scores(state, _users(state, histories), memory[: len(part)])
        seen = column[histories] if state.config.evaluation_filter_seen else None
        if len(part):
            yield ScoredBlock(scores, column[positives], seen)


def _scores(state: TrainerState, users: Tensor, out: Tensor) -> Tensor:
    """Fill `out` (n, V) with the scores of all items for users (n, d), and return it; no vector is kept."""
    live = state.table.live
    for first in range(0, len(live), _CHUNK):
        items = project(state.item_vectors(TableRows(live[first : first + _CHUNK])), state.config.tower)
        torch.mm(users, items.T, out=out[:, first : first + len(items)])
    return out


def _users(state: TrainerState, histories: Tensor) -> Tensor:
    """Return the vectors (n, d) of users with these histories (n, L), from the vectors of their items alone."""
    padding = histories.new_full((1,), PADDING)
    # Ascending, so that padding is first and keeps its number.
    rows, places = torch.unique(torch.cat([padding, histories.flatten()]), return_inverse=True)
    vectors = state.compose(state.embeddings.fetch(rows), rows)
    if not len(histories):
        return vectors[:0]
    return user_vectors(state.tower, state.config.tower, vectors, places[1:].view_as(histories))
