"""Confidence intervals of means over cases, from resampled users.

The cases of one user are not independent, so users are resampled, each with all cases (the cluster bootstrap; Field &
Welsh 2007). Resampling cases instead would give intervals that are too narrow.
"""

from typing import Final

import numpy as np

from weir.trainer.offline.data import Ints
from weir.trainer.ranking.metrics import Floats

__all__ = ["interval"]

_BLOCK: Final = 1 << 21
"""Weights held at a time."""


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
