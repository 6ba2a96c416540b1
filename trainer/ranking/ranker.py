"""Rank items by score for test cases, one block of scores at a time.

Items that never occurred in training are ranked by their score, too: even an untrained vector has one. Keep them in the
ranking; without them the test would be easier than production.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from weir.trainer.items.table import PADDING
from weir.trainer.ranking.cases import Cases, Ints
from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.towers import project

__all__ = ["Ranked", "Scores", "Seen", "distinct", "highest", "rank", "user_vectors"]

Scores = Callable[[Tensor], Tensor]
"""Maps case numbers (n,), int64 on the CPU, to scores (n, I) of all items by code, on any device."""

Seen = Callable[[Ints], tuple[Ints, Ints]]
"""Maps case numbers (n,) to item codes (m,) and for each code the position of its case in the input, (m,)."""

_BLOCK_SCORES: Final = 1 << 21
"""Scores per block: 8 MB, and up to twenty times that in temporary tensors if all are tied."""

_GROUP: Final = 16
"""Columns per group of `highest`."""


def distinct(columns: Tensor) -> Tensor:
    """Return the columns of each row (n, L) sorted, with repetitions replaced by -1."""
    ordered = columns.sort(1)[0]
    repeated = functional.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
    return ordered.masked_fill(repeated, -1)


def highest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the highest scores and their columns, (n, min(k, V)), best first; as in `torch.topk`, ties are arbitrary.

    The k highest lie in the k groups of columns with the highest maxima, or in the columns left over from grouping.
    """
    k, groups = min(k, scores.shape[1]), scores.shape[1] // _GROUP
    if groups <= _GROUP * k:
        best = scores.topk(k)
        return best.values, best.indices
    # A group is every `groups`-th column, so that one reduction gives the maxima of all groups.
    within = torch.arange(_GROUP, device=scores.device)[:, None] * groups
    maxima = scores[:, : _GROUP * groups].view(-1, _GROUP, groups).amax(1)
    columns = (maxima.topk(k, sorted=False).indices[:, None, :] + within).flatten(1)
    rest = torch.arange(_GROUP * groups, scores.shape[1], device=scores.device)
    columns = torch.cat([columns, rest.expand(len(scores), -1)], 1)
    best = scores.gather(1, columns).topk(k)
    return best.values, columns.gather(1, best.indices)


@dataclass(frozen=True, eq=False)
class Ranked:
    """Rankings of the items for C cases with R relevant items in total."""

    cases: Cases
    ranks: Ints
    """Rank of each relevant item from 1, (R,), in the order of ``cases.relevant.values``; `depth` + 1 for any
    deeper rank, an item outside the index, or a score that is not finite."""
    top: npt.NDArray[np.int32]
    """The first item codes, best first, (C, depth); -1 past the last rankable item."""
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
    """Rank all items, or only `index`, for every case by score, highest first; ties go to the lower code.

    Parameters
    ----------
    cases
        C cases.
    scores
        Called without gradients, block by block in order. Scores are compared as float32; scores that are not finite
        rank last and are never recommended.
    items
        I, the number of items that are scored.
    depth
        The largest k that will be measured.
    seen
        Returns the items to exclude from the rankings. A case's relevant items are never excluded.
    index
        Distinct item codes; None means all. A relevant item outside the index is a miss.
    block_scores
        Scores held at a time; at least one case is scored at a time.

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
        best = _first(values, depth)
        top[block, : best.shape[1]] = np.where(best >= 0, ranked_items[best], -1)
        matches = best[row] == columns[relevant][:, None]
        is_ranked = matches.any(1) & (columns[relevant] >= 0)
        own = slice(*cases.relevant.offsets[[start, start + len(block)]])
        ranks[own][is_ranked] = matches.argmax(1)[is_ranked] + 1
    return Ranked(cases, ranks, top, ranked_items)


def _scored(scores: Scores, block: Ints, items: int) -> Tensor:
    """Return the scores of a block of cases, (n, items), in float32, with -inf for scores that are not finite."""
    with torch.no_grad():
        values = scores(torch.from_numpy(block)).detach().float()
    if values.shape != (len(block), items):
        raise ValueError(
            f"scores of {len(block)} cases have shape {tuple(values.shape)}; expected ({len(block)}, {items})"
        )
    return values.where(values.isfinite(), -torch.inf)


def _without(values: Tensor, hidden: tuple[Ints, Ints], relevant: tuple[Ints, Ints]) -> Tensor:
    """Set the scores of hidden items, except relevant ones, to -inf in place; `values` are the block's own copy."""
    kept, kept_place = (torch.as_tensor(part, device=values.device) for part in relevant)
    gone, gone_place = (torch.as_tensor(part, device=values.device) for part in hidden)
    own = values[kept_place, kept]
    values[gone_place, gone] = -torch.inf
    values[kept_place, kept] = own
    return values


def _first(values: Tensor, depth: int) -> Ints:
    """Return the columns of the highest values, (n, at most depth), ties by lower column; -1 for values of -inf."""
    width = min(depth, values.shape[1])
    best, order = highest(values, depth + 1)
    # `highest` breaks ties arbitrarily. Only rows with ties pay for the exact order.
    tied = ((best[:, 1:] == best[:, :-1]) & (best[:, 1:] > -torch.inf)).any(1)
    if tied.any():
        order[tied] = _keys(values[tied]).topk(best.shape[1]).indices
    order = order[:, :width]
    return order.masked_fill(values.gather(1, order) == -torch.inf, -1).cpu().numpy()


def _keys(values: Tensor) -> Tensor:
    """Return integer sort keys (n, V): higher for higher values and, among ties, for lower columns."""
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
    """Return the user vectors (n, d), normalised as in the search.

    Parameters
    ----------
    tower
        The user tower, in evaluation mode.
    vectors
        Item vectors by table row, (capacity, d), as input of the tower.
    histories
        Table rows, (n, L), padded with `PADDING`.
    with_features
        Adds feature vectors of the users to the tower's output, (n, d).
    """
    users = tower(functional.embedding(histories, vectors), histories != PADDING)
    return project(users if with_features is None else with_features(users), config)
