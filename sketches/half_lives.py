"""Combine counts under several half-lives: for each key, the longest half-life that can be trusted.

A short half-life follows a change quickly but is noisy, a long one is precise but late. So a
key uses the longest half-life whose rate agrees with the rates of all shorter ones within the counting noise (the
idea of Lepski's method for choosing a bandwidth: Lepski, "On a problem of adaptive estimation in Gaussian white noise",
1990).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.sketches.arrays import Floats

__all__ = ["Choice", "agreed", "choose", "longest_agreeing", "to_longest"]

Choice = npt.NDArray[np.int8]

_TOLERANCE: Final = 1.5
"""Standard deviations within which two rates agree; measured: the result is flat between 1 and 2."""
_NO_EVENTS: Final = 1e-100
"""Replaces a total of 0, to avoid a division by 0. All counts are 0 then, and so are the rates."""


def agreed(counts: Sequence[Floats], totals: Sequence[float], squares: Sequence[float]) -> Floats:
    """Return the counts of keys (n,) under the half-lives chosen by `choose`, as events of the longest."""
    scaled = [count * scale for count, scale in zip(counts, to_longest(totals), strict=True)]
    found: Floats = np.choose(choose(counts, totals, squares), scaled)
    return found


def to_longest(totals: Sequence[float]) -> list[float]:
    """Return the factors that convert counts under each half-life to events of the longest one."""
    return [1.0 if total == totals[-1] else totals[-1] / max(total, _NO_EVENTS) for total in totals]


def choose(counts: Sequence[Floats], totals: Sequence[float], squares: Sequence[float]) -> Choice:
    """Return the index of the half-life chosen for each key, (n,).

    Parameters
    ----------
    counts
        The keys' counts under each half-life, (n,) each, from the shortest to the longest.
    totals, squares
        For each half-life, the sum of the weights of all its events, and the sum of their squares.
    """
    held = [max(total, _NO_EVENTS) for total in totals]
    rates = [count / total for count, total in zip(counts, held, strict=True)]
    return longest_agreeing(rates, [square / total**2 for square, total in zip(squares, held, strict=True)])


def longest_agreeing(rates: Sequence[Floats], noises: Sequence[float]) -> Choice:
    """Return for each key the index of the longest half-life whose rate agrees with those of all shorter ones, (n,).

    Parameters
    ----------
    rates
        The keys' rates under each half-life, (n,) each, from the shortest to the longest.
    noises
        For each half-life, the variance of a rate divided by the rate: for counts of Poisson events of weight w each,
        ``sum(w**2) / sum(w)**2``. Rates agree within 1.5 standard deviations of their difference.
    """
    chosen = np.zeros(rates[0].size, dtype=np.int8)
    for longer in range(1, len(rates)):
        agrees = np.ones(chosen.size, dtype=np.bool_)
        for shorter in range(longer):
            variance = np.maximum(rates[longer], rates[shorter]) * (noises[longer] + noises[shorter])
            agrees &= (rates[longer] - rates[shorter]) ** 2 <= _TOLERANCE**2 * variance
        chosen[agrees] = longer
    return chosen
