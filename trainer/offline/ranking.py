"""Rank the items of test cases, a block of scores at a time.

There are two protocols. `each_interaction` makes a case of every test interaction, with its one item relevant
(sequential models, temporal and leave-one-out splits); `each_user` makes one of every user, with all test items of the
user relevant (collaborative filtering, random splits).

Items that never occurred in training are ranked by whatever score they get: an untrained vector still has one. Leave
them in, or the test becomes easier than use; their share belongs to the split's figures.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.offline.data import Interactions, Ints

__all__ = ["Cases", "Lists", "Ranked", "each_interaction", "each_user", "rank", "slices", "top_items_and_positives"]

Scores: TypeAlias = Callable[[Tensor], Tensor]
"""From numbers of cases (n,), int64 on the CPU, to scores (n, I) of all items by code, on any device."""

Seen: TypeAlias = Callable[[Ints], tuple[Ints, Ints]]
"""From numbers of cases (n,) to item codes (m,), and for each the place of its case in the numbers, (m,)."""

_BLOCK_SCORES: Final = 1 << 21
"""Scores per block: 8 MB, and up to twenty times as much with what is made of them where all are tied."""


@dataclass(frozen=True, eq=False)
class Lists:
    """L lists of codes of differing length, one after the other (the form of a CSR matrix)."""

    offsets: Ints
    """List i is ``values[offsets[i] : offsets[i + 1]]``, (L + 1,)."""
    values: Ints

    @classmethod
    def grouped(cls, keys: Ints, values: Ints, count: int) -> "Lists":
        """Return `count` lists; list i has the values whose key is i, in the order given."""
        offsets = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=count))])
        return cls(offsets, values[np.argsort(keys, kind="stable")])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        """(L,)."""
        return np.diff(self.offsets)

    def take(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return the values of the lists `numbers`, (m,), and for each the place of its list in `numbers`, (m,)."""
        return slices(self.values, self.offsets[numbers], self.offsets[numbers + 1])


@dataclass(frozen=True, eq=False)
class Cases:
    """C questions to a model, what does this user take, with their right answers."""

    users: Ints
    """(C,)."""
    relevant: Lists
    """C lists of item codes without repetition, none empty."""

    def __len__(self) -> int:
        return len(self.users)


@dataclass(frozen=True, eq=False)
class Ranked:
    """What came of C cases with R relevant items together."""

    cases: Cases
    ranks: Ints
    """Rank of each relevant item from 1, (R,) in the order of ``cases.relevant.values``; `depth` + 1 stands for all
    ranks beyond, for items outside the index and for scores that are not finite."""
    top: npt.NDArray[np.int32]
    """The first item codes, best first, (C, depth); -1 where no more items were left to rank."""
    index: Ints
    """The items that were ranked, ascending, (V,)."""

    @property
    def depth(self) -> int:
        """How far down the rankings were looked at; the largest k that can be measured."""
        return int(self.top.shape[1])


def slices(values: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return all ``values[starts[i] : ends[i]]``, one after the other (m,), and for each its i (m,)."""
    lengths = ends - starts
    place = np.repeat(np.arange(len(lengths)), lengths)
    within = np.arange(len(place)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return values[starts[place] + within], place


def each_interaction(interactions: Interactions, rows: Ints) -> Cases:
    """Return a case per row, in the order of `rows`, whose one relevant item is the row's."""
    return Cases(interactions.users[rows], Lists(np.arange(len(rows) + 1), interactions.items[rows]))


def each_user(interactions: Interactions, rows: Ints) -> Cases:
    """Return a case per user of `rows`, in order of code; all its items in `rows` are relevant, each once."""
    pairs = np.unique(np.stack([interactions.users[rows], interactions.items[rows]], 1), axis=0)
    users, place = np.unique(pairs[:, 0], return_inverse=True)
    return Cases(users, Lists.grouped(place, pairs[:, 1], len(users)))


def top_items_and_positives(counts: Ints, k: int, test_items: Ints) -> Ints:
    """Return the `k` items of the highest `counts`, (I,), and all `test_items`, ascending and each once.

    The evaluation index of "Correcting the LogQ Correction" (evaluation protocol; k was 2 million there). Ties go to
    the lower code.
    """
    return np.union1d(np.argsort(-counts, kind="stable")[:k], test_items)


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
        Tells the items to leave out of the rankings. A case's relevant items are never left out.
    index
        Distinct item codes; None stands for all. A relevant item that is not among them counts as missed.
    block_scores
        Scores held at a time; at least one case's are.

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
    for block in _blocks(len(cases), max(1, block_scores // items)):
        values = _scored(scores, block, items)
        device = values.device
        relevant, place = cases.relevant.take(block)
        if seen is not None:
            values = _without(values, seen(block), (relevant, place))
        if index is not None:
            values = values[:, torch.as_tensor(ranked_items, device=device)]
        found = _first(values, depth)
        top[block, : found.shape[1]] = np.where(found >= 0, ranked_items[found], -1)
        matches = found[place] == columns[relevant][:, None]
        known = matches.any(1) & (columns[relevant] >= 0)
        start = cases.relevant.offsets[block[0]]
        ranks[start : start + len(relevant)][known] = matches.argmax(1)[known] + 1
    return Ranked(cases, ranks, top, ranked_items)


def _blocks(count: int, size: int) -> Iterator[Ints]:
    for start in range(0, count, size):
        yield np.arange(start, min(start + size, count))


def _scored(scores: Scores, block: Ints, items: int) -> Tensor:
    """Return scores in float32, -inf where they are not finite."""
    with torch.no_grad():
        values = scores(torch.from_numpy(block)).detach().float()
    if values.shape != (len(block), items):
        message = f"scores of {len(block)} cases came as {tuple(values.shape)}; allowed is ({len(block)}, {items})"
        raise ValueError(message)
    return values.where(values.isfinite(), -torch.inf)


def _without(values: Tensor, hidden: tuple[Ints, Ints], relevant: tuple[Ints, Ints]) -> Tensor:
    """Take the hidden items out of the ranking, but not the relevant ones; `values` is the block's own copy."""
    kept, kept_place = (torch.as_tensor(part, device=values.device) for part in relevant)
    gone, gone_place = (torch.as_tensor(part, device=values.device) for part in hidden)
    own = values[kept_place, kept]
    values[gone_place, gone] = -torch.inf
    values[kept_place, kept] = own
    return values


def _first(values: Tensor, depth: int) -> Ints:
    """Return the columns of the highest values, (n, at most depth), ties by column; -1 for those at -inf."""
    width = min(depth, values.shape[1])
    best, order = values.topk(min(depth + 1, values.shape[1]))
    # topk breaks ties as it likes. Only rows that have some pay for the exact order.
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
