"""Popularity drift between two periods, from the counts of keys in each."""

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from weir.sketches.protocol import Floats, Keys

__all__ = ["HEAD", "Counted", "head_distance", "jensen_shannon", "unseen_share"]

HEAD: Final = 1000
"""Default number of most frequent keys of each period that are compared individually."""


class Counted(NamedTuple):
    """Distinct `keys` (n,) and their `counts` (n,) in one period."""

    keys: Keys
    counts: npt.NDArray[np.int64] | Floats


def jensen_shannon(left: npt.ArrayLike, right: npt.ArrayLike) -> float:
    """Return the Jensen-Shannon distance of two distributions given by counts (n,) of the same keys.

    The distance is 0 for equal shares and 1 for distributions without a common key; NaN if either side has no counts.
    It is the square root of the Jensen-Shannon divergence in bits.

    Source: Endres and Schindelin, "A new metric for probability distributions", 2003.
    """
    counts = np.array([left, right], dtype=np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    if not (totals > 0).all():
        return math.nan
    shares = counts / totals
    middle = np.broadcast_to(shares.mean(axis=0), shares.shape)
    present = shares > 0
    divergence = 0.5 * float((shares[present] * np.log2(shares[present] / middle[present])).sum())
    return math.sqrt(min(max(divergence, 0.0), 1.0))


def head_distance(left: Counted, right: Counted, head: int = HEAD) -> float:
    """Return the Jensen-Shannon distance of two periods, with the `head` most frequent keys of each compared singly.

    All other keys are compared as a single key: noise in their shares would make equal distributions look different.
    """
    keys = np.union1d(_most_frequent(left, head), _most_frequent(right, head))
    return jensen_shannon(_over(keys, left), _over(keys, right))


def unseen_share(counted: Counted, earlier: Keys) -> float:
    """Return the share of a period's events whose key is not in `earlier`; NaN without events."""
    total = float(counted.counts.sum())
    unseen = ~np.isin(counted.keys, earlier)
    return float(counted.counts[unseen].sum()) / total if total > 0 else math.nan


def _most_frequent(counted: Counted, head: int) -> Keys:
    """Return the `head` keys with the highest counts."""
    # Ties go to the smaller key, so that the result does not depend on the order of the arrays.
    return counted.keys[np.lexsort((counted.keys, -counted.counts))[:head]]


def _over(keys: Keys, counted: Counted) -> Floats:
    """Return the counts of `keys` (m,), ascending, then the count of all other keys together, (m + 1,)."""
    is_listed = np.isin(counted.keys, keys)
    place = np.where(is_listed, np.searchsorted(keys, counted.keys), keys.size)
    return np.bincount(place, weights=counted.counts, minlength=keys.size + 1).astype(np.float64)
