"""Merging the counts of one period into those of others, the older side faded by time."""

import numpy as np

from sketches.protocol import FrequencyEstimator

__all__ = ["merge_fading"]


def merge_fading(
    counts: FrequencyEstimator, fresh: FrequencyEstimator, later_seconds: float, half_life_seconds: float
) -> float:
    """Merge `fresh` into `counts` and return the factor by which the older of the two was faded.

    Parameters
    ----------
    counts
        What has been counted so far; changed in place.
    fresh
        A period that ends `later_seconds` after `counts`, or, below 0, before; may be changed, too.
    half_life_seconds
        Time in which a count halves.

    Raises
    ------
    ValueError
        If the parameters of the estimators differ.
    """
    # Beyond a thousand half-lives the factor is 0, which no sketch accepts; a tiny one leaves nothing either.
    fading: float = max(0.5 ** (abs(later_seconds) / half_life_seconds), float(np.finfo(np.float64).tiny))
    (counts if later_seconds > 0 else fresh).decay(fading)
    counts.merge(fresh)
    return fading
