"""Recall by the popularity of the relevant item: a mean over all hides who pays for it.

Items are ordered by their count in training, most popular first, ties by lower code. Within a group of items each
case's relevant items of other groups are left out of account; a group's recall is the mean over the cases that have
relevant items in it. With one relevant item per case the groups' recalls, weighted by their shares, add up to the
recall of all.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from trainer.offline.data import Ints
from trainer.offline.metrics import hits
from trainer.offline.ranking import Ranked

__all__ = ["STRATA", "popularity_deciles", "popularity_strata"]

STRATA: Final = {"head": 0.5, "torso": 0.3, "tail": 0.2}
"""Shares of the training interactions that the items of each stratum make, most popular first."""


def popularity_strata(ranked: Ranked, counts: Ints, cutoffs: Iterable[int]) -> dict[str, dict[str, float]]:
    """Return ``share`` (of the relevant items) and ``recall@k`` of each stratum by name.

    An item belongs where the interactions of all more popular items end: the items that make the first half of the
    training interactions are head, the next 30 % torso, the rest tail, and so are items that never occurred. The item
    at the border belongs to the more popular side.

    Parameters
    ----------
    counts
        Training interactions by item code, (I,).
    """
    order = np.argsort(-counts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    borders = np.cumsum(list(STRATA.values()))[:-1] * counts.sum()
    group = np.empty(len(counts), np.int64)
    group[order] = np.where(counts[order] > 0, np.searchsorted(borders, before, side="right"), len(STRATA) - 1)
    figures = _recall_by_group(ranked, group, len(STRATA), cutoffs)
    return {name: {"share": share, **recalls} for name, (share, _, recalls) in zip(STRATA, figures, strict=True)}


def popularity_deciles(ranked: Ranked, counts: Ints, cutoffs: Iterable[int]) -> list[dict[str, float]]:
    """Return ``cases`` and ``recall@k`` of ten groups of items, most popular first, with about as many tests each.

    So each figure is about as precise as the others. Items stay whole, in the decile in which the middle of their
    tests lies: an item with more than a tenth of the tests leaves its neighbours without.

    Parameters
    ----------
    counts
        Training interactions by item code, (I,).
    """
    order = np.argsort(-counts, kind="stable")
    tests = np.bincount(ranked.cases.relevant.values, minlength=len(counts))[order]
    middle = np.cumsum(tests) - tests / 2
    group = np.empty(len(counts), np.int64)
    group[order] = np.minimum(middle * 10 // max(tests.sum(), 1), 9)
    return [{"cases": cases, **recalls} for _, cases, recalls in _recall_by_group(ranked, group, 10, cutoffs)]


def _recall_by_group(
    ranked: Ranked, group: Ints, count: int, cutoffs: Iterable[int]
) -> list[tuple[float, int, dict[str, float]]]:
    """Return of each group its share of the relevant items, its cases, and its recalls (NaN without cases)."""
    cutoffs = tuple(cutoffs)
    relevant = ranked.cases.relevant
    place = np.repeat(np.arange(len(relevant)), relevant.lengths)
    figures = []
    for number in range(count):
        inside = group[relevant.values] == number
        held = np.bincount(place[inside], minlength=len(relevant))
        asked = held > 0
        recalls = {}
        for k in cutoffs:
            found = np.bincount(place[inside & hits(ranked, k)], minlength=len(relevant))
            recalls[f"recall@{k}"] = float((found[asked] / held[asked]).mean()) if asked.any() else np.nan
        figures.append((float(inside.sum() / max(len(inside), 1)), int(asked.sum()), recalls))
    return figures
