"""Intervals of means over cases, and recall by the popularity of the relevant item.

The cases of one user are not independent, so users are resampled, each with all cases (the cluster bootstrap; Field &
Welsh 2007). Resampling cases instead would give intervals that are too narrow.

Items are sorted by their count in training, most popular first, ties by lower code. For a group of items, each
case's relevant items outside the group are ignored; the group's recall is the mean over the cases with
relevant items in it. With one relevant item per case, the groups' recalls, weighted by their shares, add up to the
overall recall.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from weir.trainer.offline.data import Ints
from weir.trainer.ranking import Ranked, hits
from weir.trainer.ranking.metrics import Floats

__all__ = ["STRATA", "interval", "popularity_deciles", "popularity_strata"]


_BLOCK: Final = 1 << 21
"""Weights held at a time."""


STRATA: Final = {"head": 0.5, "torso": 0.3, "tail": 0.2}
"""Share of the training interactions in each stratum, most popular items first."""


def interval(
    values: Floats, users: Ints, level: float = 0.95, resamples: int = 1000, *, generator: np.random.Generator
) -> tuple[float, float]:
    """Return the percentile interval of the mean over cases, with users drawn with replacement.

    For two models, pass the case-by-case differences: the interval of their difference is narrower than the two models'
    own intervals suggest.

    Parameters
    ----------
    values
        A metric of each case, (C,).
    users
        The user of each case, (C,).
    level
        Confidence level: the share of repetitions with other users in which the interval contains the true mean.
    resamples
        Number B of resampled means, from which the percentiles are taken.
    generator
        Source of randomness.

    Returns
    -------
    The lower and the upper end; NaN with fewer than two users.
    """
    _, user = np.unique(users, return_inverse=True)
    sizes = np.bincount(user)
    if len(sizes) < 2:
        return np.nan, np.nan
    sums = np.stack([np.bincount(user, values), sizes], 1).astype(np.float64)
    block = max(1, _BLOCK // len(sums))
    parts = [_resampled(sums, min(block, resamples - start), generator) for start in range(0, resamples, block)]
    low, high = np.quantile(np.concatenate(parts), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resampled(sums: Floats, count: int, generator: np.random.Generator) -> Floats:
    """Return `count` resampled means over cases, given each user's sum and number of cases, (U, 2)."""
    users = len(sums)
    # The counts of drawn users are multinomial; counting draws is faster than numpy's multinomial.
    drawn = generator.integers(users, size=(count, users)) + users * np.arange(count)[:, None]
    weights = np.bincount(drawn.ravel(), minlength=count * users).reshape(count, users)
    total, cases = (weights @ sums).T
    return np.asarray(total / cases)


def popularity_strata(ranked: Ranked, counts: Ints, cutoffs: Iterable[int]) -> dict[str, dict[str, float]]:
    """Return ``share`` (of the relevant items) and ``recall@k`` of each stratum by name.

    The most popular items that make up half of the training interactions are head, the next 30 % torso, the rest tail,
    including items that never occurred. An item across a border belongs to the more popular stratum.

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
    groups = _recall_by_group(ranked, group, len(STRATA), cutoffs)
    return {name: {"share": share, **recalls} for name, (share, _, recalls) in zip(STRATA, groups, strict=True)}


def popularity_deciles(ranked: Ranked, counts: Ints, cutoffs: Iterable[int]) -> list[dict[str, float]]:
    """Return ``cases`` and ``recall@k`` of ten groups of items, most popular first, with about equally many tests each.

    All recalls are thus about equally precise. All tests of an item are in one decile, that of the item's middle test:
    an item with more than a tenth of the tests leaves a neighbouring decile empty.

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
    """Return the share of the relevant items, the cases and the recalls (NaN without cases) of each group."""
    cutoffs = tuple(cutoffs)
    relevant = ranked.cases.relevant
    case = relevant.list_numbers
    groups = []
    for number in range(count):
        inside = group[relevant.values] == number
        wanted = np.bincount(case[inside], minlength=len(relevant))
        tested = wanted > 0
        recalls = {}
        for k in cutoffs:
            found = np.bincount(case[inside & hits(ranked, k)], minlength=len(relevant))
            recalls[f"recall@{k}"] = float((found[tested] / wanted[tested]).mean()) if tested.any() else np.nan
        groups.append((float(inside.sum() / max(len(inside), 1)), int(tested.sum()), recalls))
    return groups
