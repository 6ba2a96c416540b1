"""Counts under several half-lives, and for each key the longest half-life that can be trusted.

A short memory follows a change quickly but is noisy, a long one is precise but late; no single half-life is both. So a
key takes the longest half-life whose rate agrees with the rates of all shorter ones within the noise of counting (the
idea of Lepski's method for choosing a bandwidth: Lepski, "On a problem of adaptive estimation in Gaussian white noise",
1990).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from sketches.arrays import Floats, Keys
from sketches.protocol import FrequencyEstimator

__all__ = ["agreed_counts", "longest_agreeing"]

_TOLERANCE: Final = 1.5
"""Standard deviations by which two rates may differ and still agree; measured, flat between 1 and 2."""
_NO_EVENTS: Final = 1e-100
"""Replaces a total of 0, whose square is divided by. All counts are 0 then, and so are the rates."""


def agreed_counts(
    keys: Keys, sketches: Sequence[FrequencyEstimator], squares: Sequence[float], own: float = 0.0
) -> Floats:
    """Return the counts of keys (n,) under their chosen half-lives, as events of the longest: (n,).

    Parameters
    ----------
    keys
        int64, shape (n,).
    sketches
        Decayed counts, from the shortest half-life to the longest, at least one.
    squares
        For each sketch, the sum of the squared weights of its events, which gives the noise of its counts.
    own
        Events to subtract from each count.
    """
    counts = [np.maximum(sketch.estimate(keys) - own, 0.0) for sketch in sketches]
    if len(counts) == 1:
        return counts[0]
    totals = [max(sketch.total, _NO_EVENTS) for sketch in sketches]
    rates = [count / total for count, total in zip(counts, totals, strict=True)]
    noises = [square / total**2 for square, total in zip(squares, totals, strict=True)]
    return longest_agreeing(rates, noises) * totals[-1]


def longest_agreeing(rates: Sequence[Floats], noises: Sequence[float]) -> Floats:
    """Return for each key the rate under the longest memory that agrees with all shorter ones.

    Parameters
    ----------
    rates
        The keys' rates under each memory, (n,) each, from the shortest to the longest.
    noises
        For each memory, the variance of a rate divided by the rate: for counts of Poisson events of weight w each,
        ``sum(w**2) / sum(w)**2``. Rates agree within 1.5 standard deviations of their difference.
    """
    chosen = rates[0].copy()
    for longer in range(1, len(rates)):
        agrees = np.ones(chosen.size, dtype=np.bool_)
        for shorter in range(longer):
            variance = np.maximum(rates[longer], rates[shorter]) * (noises[longer] + noises[shorter])
            agrees &= (rates[longer] - rates[shorter]) ** 2 <= _TOLERANCE**2 * variance
        np.copyto(chosen, rates[longer], where=agrees)
    return chosen
