"""Prequential evaluation: test the model on a window before it is trained on the window.

Ranks exchange users, one score per example, counts and the best few items. No item vector leaves its rank, and each
rank holds one block of scores at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from weir.contracts import WindowManifest
from weir.trainer.items.placement import Places
from weir.trainer.items.rows import FIRST_ITEM, PADDING
from weir.trainer.ranking import MetricSums, distinct, highest, user_vectors
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.progress import Evaluation
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.batches import Examples
from weir.trainer.step.positives import Positives
from weir.trainer.towers import project
from weir.trainer.towers.features import FeatureInputs
from weir.trainer.towers.user_features import Layout, UserLines

__all__ = ["OwnItems", "ScoredBlock", "evaluate", "scored_blocks"]


_BLOCK: Final = 1 << 25
"""Scores in memory at a time if no setting bounds them: 128 MiB, but at least `_FEWEST_ROWS` rows."""

_CHUNK: Final = 1 << 14
"""Items whose vectors are computed at a time: 4 MB with 64 dimensions, which fit in the processor's cache."""

_FEWEST_ROWS: Final = 16
"""Fewest examples per block: with fewer, the matrix product is slow."""

_MOST_ROWS: Final = 256
"""Most examples per block: more are not faster."""


@dataclass(frozen=True, eq=False)
class OwnItems:
    """The items of a rank's shard, in local order: a column is the position of an item.

    Parameters
    ----------
    rows
        Table rows of the items, (v,).
    counts
        Decayed counts of the items, (v,).
    places
        Sharding of table rows over ranks.
    """

    rows: Tensor
    counts: Tensor
    places: Places

    @classmethod
    def of(cls, state: TrainerState) -> "OwnItems":
        """Return the items of this rank."""
        places = state.embeddings.places
        rows = state.table.in_use.at(places).to(state.device)
        return cls(rows, state.counts.at(places.local(rows)), places)

    def __len__(self) -> int:
        return len(self.rows)

    def columns(self, rows: Tensor) -> Tensor:
        """Return the columns of table `rows`, in their shape; -1 for rows of other ranks."""
        if not len(self):
            return torch.full_like(rows, -1)
        column = torch.searchsorted(self._places, self.places.key(rows.contiguous())).clamp(max=len(self) - 1)
        return torch.where(self.rows[column] == rows, column, -1)

    def more_popular(self, rows: Tensor, counts: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return the number of items on this rank that precede each of `rows` (n,), by count, then by row.

        Parameters
        ----------
        rows
            Rows of items of any rank, (n,).
        counts
            Counts of these items, (n,).
        hidden
            Columns to exclude, (n, L), distinct, -1 for none.
        """
        keys = self._keys(counts, rows)
        before = torch.searchsorted(self._ordered, keys)
        if hidden is not None and len(self):
            before = before - ((hidden >= 0) & (self._own_keys[hidden.clamp(min=0)] < keys[:, None])).sum(1)
        return before

    def _keys(self, counts: Tensor, rows: Tensor) -> Tensor:
        """Return sort keys (n,) of items of any rank: by count, highest first, then by row."""
        group, is_known = torch.searchsorted(self._counts_down, -counts), torch.zeros_like(rows, dtype=torch.bool)
        if len(self):
            is_known = self._counts_down[group.clamp(max=len(self._counts_down) - 1)] == -counts
        # A count that no item here has sorts before all items of the next lower count.
        return group * self.places.capacity + rows * is_known

    @cached_property
    def _places(self) -> Tensor:
        """Places of the rows, ascending."""
        return self.places.key(self.rows)

    @cached_property
    def _own_keys(self) -> Tensor:
        """Sort keys of this rank's items."""
        return self._keys(self.counts, self.rows)

    @cached_property
    def _ordered(self) -> Tensor:
        """Sort keys of this rank's items, ascending."""
        return self._own_keys.sort().values

    @cached_property
    def _counts_down(self) -> Tensor:
        """The distinct counts, negated and ascending."""
        down: Tensor = torch.unique(-self.counts)
        return down


@dataclass(frozen=True, eq=False)
class ScoredBlock:
    """Scores (n, v) of a rank's `items` for n examples; the memory of `scores` is reused by the next block.

    `positives` (n,) are the table rows of the items to predict, `seen` (n, L) the rows to exclude from the rankings,
    repetitions allowed, and `total` the number of items of all ranks. Methods are collective and return the same on all
    ranks.
    """

    scores: Tensor
    items: OwnItems
    positives: Tensor
    seen: Tensor | None
    total: int
    workers: Workers

    def ranks(self) -> Tensor:
        """Return the ranks (n,) of the positives by score; an item without a row ranks below everything."""
        columns = self.items.columns(self.positives)
        own, here = self.scores.new_zeros(len(columns)), columns >= 0
        own[here] = self.scores[here, columns[here]]
        self.workers.sum(own)
        ranks = 1 + self.workers.sum(self._above(own))
        return ranks.masked_fill((self.positives < FIRST_ITEM) | ~own.isfinite(), self.total + 1)

    def _above(self, own: Tensor) -> Tensor:
        """Return the number of this rank's items, (n,), that rank above the positives, whose scores are `own` (n,)."""
        scores, rows, above = self.scores, self.items.rows, torch.zeros_like(self.positives)
        # One row at a time, into reused memory: allocating memory for all rows would cost more than the comparisons.
        is_so = torch.empty(len(rows), dtype=torch.bool, device=scores.device)
        for number, row in enumerate(self.positives.tolist()):
            above[number] = torch.gt(scores[number], own[number], out=is_so).count_nonzero()
            ties = torch.eq(scores[number], own[number], out=is_so).nonzero()[:, 0]
            above[number] += (rows[ties] < row).sum()
        if self._hidden is None or not len(rows):
            return above
        there, own, positives = self._hidden.clamp(min=0), own[:, None], self.positives[:, None]
        values, is_lower = scores.gather(1, there), rows[there] < positives
        return above - ((self._hidden >= 0) & ((values > own) | (values == own) & is_lower)).sum(1)

    def ranks_by_count(self, counts: Tensor) -> Tensor:
        """Return the popularity ranks (n,) of the positives, whose counts are `counts` (n,)."""
        ranks = 1 + self.workers.sum(self.items.more_popular(self.positives, counts, self._hidden))
        return ranks.masked_fill(self.positives < FIRST_ITEM, self.total + 1)

    def best(self, k: int) -> Tensor:
        """Return the rows (n, min(k, V)) of the highest scores, best first; seen items come after all others."""
        values, columns = highest(self.scores, k + (0 if self._hidden is None else self._hidden.shape[1]))
        if self._hidden is not None:
            is_hidden = (columns[:, :, None] == self._hidden[:, None, :]).any(2)
            values = values.masked_fill(is_hidden, torch.finfo(values.dtype).min)
        rows = self.items.rows[columns]
        if self._hidden is not None or self.workers.world_size > 1:
            values, rows = _first(*_of_ranks(*_first(values, rows, k), k, self.workers), min(k, self.total))
        return rows

    @cached_property
    def _hidden(self) -> Tensor | None:
        """Distinct columns of the seen items on this rank, (n, L), -1 for repetitions and items of other ranks."""
        if self.seen is None:
            return None
        return distinct(self.items.columns(self.seen))


def _first(values: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k highest `values` of each example (n, m) and their table `rows`, best first; all if m < k."""
    best = values.topk(min(k, values.shape[1]))
    return best.values, rows.gather(1, best.indices)


def _of_ranks(values: Tensor, rows: Tensor, k: int, workers: Workers) -> tuple[Tensor, Tensor]:
    """Return the values and rows of all ranks side by side, (n, ranks * k), given at most k of this rank, (n, ...)."""
    missing = k - values.shape[1]
    values = functional.pad(values, (0, missing), value=-torch.inf)
    parts = workers.gather(values), workers.gather(functional.pad(rows, (0, missing), value=PADDING))
    return parts[0].transpose(0, 1).flatten(1), parts[1].transpose(0, 1).flatten(1)


@torch.no_grad()
def scored_blocks(
    state: TrainerState, examples: Examples, features: FeatureInputs | None = None
) -> Iterator[ScoredBlock]:
    """Score all items of the table for the examples, block by block; all ranks pass the same examples.

    `features` are the features of the examples' users. With `evaluation_filter_seen`, seen items are excluded.
    """
    state.tower.eval()
    workers, items = state.embeddings.workers, OwnItems.of(state)
    size = _together(-(-len(state.table) // workers.world_size), state.config.evaluation_memory_mb)
    memory = state.embeddings.weight.new_empty(min(size, len(examples)), len(items))
    for first in range(0, len(examples), size):
        block = slice(first, first + size)
        part, inputs = examples.take(block), features and FeatureInputs(*(values[block] for values in features))
        histories, positives = part.histories.to(state.device), part.positives.to(state.device)
        scores = _scores(state, items, _users(state, histories, inputs), memory[: len(part)])
        seen = histories if state.config.evaluation_filter_seen else None
        yield ScoredBlock(scores, items, positives, seen, len(state.table), workers)


def _together(items: int, memory_mb: int | None) -> int:
    """Return the number of examples per block, from the number of items on this rank and the memory for scores."""
    scores, fewest = (_BLOCK, _FEWEST_ROWS) if memory_mb is None else (memory_mb << 18, 1)
    return min(max(scores // max(items, 1), fewest), _MOST_ROWS)


def _scores(state: TrainerState, items: OwnItems, users: Tensor, out: Tensor) -> Tensor:
    """Write the scores of a rank's items for users (n, d) to `out` (n, v), in chunks of items, and return `out`."""
    for first in range(0, len(items), _CHUNK):
        rows = items.rows[first : first + _CHUNK]
        vectors = project(state.vectors.kept(rows), state.config.tower)
        torch.mm(users, vectors.T, out=out[:, first : first + len(rows)])
    return out


def _users(state: TrainerState, histories: Tensor, features: FeatureInputs | None) -> Tensor:
    """Return the vectors (n, d) of users with these histories (n, L) and features; each rank computes a part."""
    workers, add = state.embeddings.workers, None
    mine = workers.part(len(histories))
    here = histories[mine]
    if state.featured_users is not None and features is not None:
        inputs = FeatureInputs(*(values[mine].to(state.device) for values in features))
        add = partial(state.featured_users.compose, features=inputs)
    padding = histories.new_full((1,), PADDING)
    # `unique` sorts: padding, which is 0, comes first and stays 0.
    rows, places = torch.unique(torch.cat([padding, here.flatten()]), return_inverse=True)
    vectors = state.item_vectors(rows)
    users = vectors[:0]
    if len(here):
        users = user_vectors(state.tower, state.config.tower, vectors, places[1:].view_as(here), add)
    return workers.collect(users)


@torch.no_grad()
def evaluate(state: TrainerState, manifest: WindowManifest, positives: Positives) -> Evaluation:
    """Return the metrics on `positives` sampled from a window, ranked over all items of the table; collective.

    Call it before `ingest_window`, since popularity and novelty must be from before the window.
    """
    tested = Examples.of(positives, state.table)
    known = int((tested.positives >= FIRST_ITEM).sum())
    facts = {
        "window": str(manifest.name),
        "sequence": manifest.sequence,
        "step": state.position.step,
        "events": len(tested),
        "known": known,
        "items": len(state.table),
        "seen_filtered": state.config.evaluation_filter_seen,
    }
    if not len(tested) or not len(state.table):
        return Evaluation.model_validate(facts)
    sums = _metric_sums(state, tested, _features(state, manifest, positives))
    return Evaluation.model_validate(facts | sums.means(len(tested)))


def _features(state: TrainerState, manifest: WindowManifest, positives: Positives) -> FeatureInputs | None:
    """Return the features of the positives' users, if the model reads any."""
    if state.featured_users is None or not positives.features.shape[1]:
        return None
    layout = Layout.of(manifest.user_features, state.config.features.buckets)
    return state.featured_users.inputs(UserLines(layout, positives.features))


def _metric_sums(state: TrainerState, examples: Examples, features: FeatureInputs | None) -> MetricSums:
    """Return the sums of all metrics over the examples."""
    sums = MetricSums(state.config.evaluation_k)
    for block in scored_blocks(state, examples, features):
        sums.add(block.ranks(), block.ranks_by_count(state.counts[block.positives]))
        counts = state.counts[block.best(max(sums.cutoffs))]
        sums.add_recommended(*(values.double().cpu().numpy() for values in (state.counts.log_q(counts), counts)))
    return sums
