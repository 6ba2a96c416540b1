"""Rank items by score: one held-out item per row, or the relevant items of test cases, a block of scores at a time.

Items that never occurred in training are ranked by whatever score they get: an untrained vector still has one. Leave
them in, or the test becomes easier than use.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from weir.trainer.config import TowerConfig
from weir.trainer.items.table import PADDING
from weir.trainer.ranking.cases import Cases, Ints
from weir.trainer.towers import project

__all__ = ["Ranked", "Scores", "Seen", "distinct", "highest", "rank", "user_vectors"]

Scores = Callable[[Tensor], Tensor]
"""From numbers of cases (n,), int64 on the CPU, to scores (n, I) of all items by code, on any device."""

Seen = Callable[[Ints], tuple[Ints, Ints]]
"""From numbers of cases (n,) to item codes (m,), and for each the position of its case in the numbers, (m,)."""

_BLOCK_SCORES: Final = 1 << 21
"""Scores per block: 8 MB, and up to twenty times as much with the temporary tensors where all are tied."""

_GROUP: Final = 16
"""Columns per group of `highest`."""


def distinct(columns: Tensor) -> Tensor:
    """Return columns (n, L) with -1 in place of all but one of those that a row repeats; their order changes."""
    ordered = columns.sort(1)[0]
    repeated = functional.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
    return ordered.masked_fill(repeated, -1)


def highest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the highest scores and their columns, (n, min(k, V)), best first; as in `torch.topk`, ties go anyhow.

    The k highest are among the k groups of columns whose maxima are highest, and the columns of no group.
    """
    k, groups = min(k, scores.shape[1]), scores.shape[1] // _GROUP
    if groups <= _GROUP * k:
        best = scores.topk(k)
        return best.values, best.indices
    # A group is every `groups`-th column, so that maxima of whole rows are taken at once.
    within = torch.arange(_GROUP, device=scores.device)[:, None] * groups
    maxima = scores[:, : _GROUP * groups].view(-1, _GROUP, groups).amax(1)
    columns = (maxima.topk(k, sorted=False).indices[:, None, :] + within).flatten(1)
    rest = torch.arange(_GROUP * groups, scores.shape[1], device=scores.device)
    columns = torch.cat([columns, rest.expand(len(scores), -1)], 1)
    best = scores.gather(1, columns).topk(k)
    return best.values, columns.gather(1, best.indices)


@dataclass(frozen=True, eq=False)
class Ranked:
    """The rankings of C cases with R relevant items together."""

    cases: Cases
    ranks: Ints
    """Rank of each relevant item from 1, (R,) in the order of ``cases.relevant.values``; `depth` + 1 means any
    rank beyond, an item outside the index or a score that is not finite."""
    top: npt.NDArray[np.int32]
    """The first item codes, best first, (C, depth); -1 where no more items were left to rank."""
    index: Ints
    """The items that were ranked, ascending, (V,)."""

    @property
    def depth(self) -> int:
        """Length of the rankings; the largest k that can be measured."""
        return int(self.top.shape[1])


def rank(
    cases: Cases,
    scores: Scores,
    items: int,
    *,
    depth: int,
    seen: Seen | None = None,
    index: Ints | None = None,
    block_scores: int = _BLOCK_SCORES,
) -> Ranked:
    """Rank all items, or those of `index`, for every case by score, highest first; ties go to the lower code.

    Parameters
    ----------
    cases
        C cases.
    scores
        Called without gradients, block by block in order. Scores are compared as float32; one that is not finite ranks
        below all and is never recommended.
    items
        I, the number of items that are scored.
    depth
        The largest k that will be measured.
    seen
        Returns the items to exclude from the rankings. A case's relevant items are never excluded.
    index
        Distinct item codes; None means all. A relevant item that is not among them counts as missed.
    block_scores
        Scores held at a time, but at least those of one case.

    Raises
    ------
    ValueError
        If `scores` returns another shape than (n, I).
    """
    ranked_items = np.arange(items) if index is None else np.sort(index)
    columns = np.full(items, -1)
    columns[ranked_items] = np.arange(len(ranked_items))
    top = np.full((len(cases), depth), -1, np.int32)
    ranks = np.full(len(cases.relevant.values), depth + 1)
    size = max(1, block_scores // items)
    for start in range(0, len(cases), size):
        block = np.arange(start, min(start + size, len(cases)))
        values = _scored(scores, block, items)
        device = values.device
        relevant, row = cases.relevant.take(block)
        if seen is not None:
            values = _without(values, seen(block), (relevant, row))
        if index is not None:
            values = values[:, torch.as_tensor(ranked_items, device=device)]
        found = _first(values, depth)
        top[block, : found.shape[1]] = np.where(found >= 0, ranked_items[found], -1)
        matches = found[row] == columns[relevant][:, None]
        known = matches.any(1) & (columns[relevant] >= 0)
        own = slice(*cases.relevant.offsets[[start, start + len(block)]])
        ranks[own][known] = matches.argmax(1)[known] + 1
    return Ranked(cases, ranks, top, ranked_items)


def _scored(scores: Scores, block: Ints, items: int) -> Tensor:
    """Return scores in float32, -inf where they are not finite."""
    with torch.no_grad():
        values = scores(torch.from_numpy(block)).detach().float()
    if values.shape != (len(block), items):
        raise ValueError(
            f"scores of {len(block)} cases have shape {tuple(values.shape)}; expected ({len(block)}, {items})"
        )
    return values.where(values.isfinite(), -torch.inf)


def _without(values: Tensor, hidden: tuple[Ints, Ints], relevant: tuple[Ints, Ints]) -> Tensor:
    """Exclude the hidden items from the ranking, but not the relevant ones; `values` is the block's own copy."""
    kept, kept_place = (torch.as_tensor(part, device=values.device) for part in relevant)
    gone, gone_place = (torch.as_tensor(part, device=values.device) for part in hidden)
    own = values[kept_place, kept]
    values[gone_place, gone] = -torch.inf
    values[kept_place, kept] = own
    return values


def _first(values: Tensor, depth: int) -> Ints:
    """Return the columns of the highest values, (n, at most depth), ties by column; -1 for those at -inf."""
    width = min(depth, values.shape[1])
    best, order = highest(values, depth + 1)
    # `highest` breaks ties arbitrarily. Only rows that have some pay for the exact order.
    tied = ((best[:, 1:] == best[:, :-1]) & (best[:, 1:] > -torch.inf)).any(1)
    if tied.any():
        order[tied] = _keys(values[tied]).topk(best.shape[1]).indices
    order = order[:, :width]
    return order.masked_fill(values.gather(1, order) == -torch.inf, -1).cpu().numpy()


def _keys(values: Tensor) -> Tensor:
    """Return integers that order as (value, lower column first): the bits of a float order as its size does."""
    bits = (values + 0.0).view(torch.int32)
    ordered = torch.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).long()
    column = torch.arange(values.shape[1] - 1, -1, -1, device=values.device)
    return (ordered << 32) | column


def user_vectors(
    tower: nn.Module,
    config: TowerConfig,
    vectors: Tensor,
    histories: Tensor,
    with_features: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the vectors (n, d) of users as the search compares them.

    Parameters
    ----------
    tower
        The user tower, in evaluation mode.
    vectors
        What the tower reads, by table row, (capacity, d).
    histories
        Table rows, (n, L), padded with `PADDING`.
    with_features
        Adds to what the tower makes of histories, (n, d), what features of the users say.
    """
    users = tower(functional.embedding(histories, vectors), histories != PADDING)
    return project(users if with_features is None else with_features(users), config)
