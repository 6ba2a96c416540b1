"""Input checks of all estimators: arrays of keys and weights, and decay factors."""

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

HEAVIEST_BATCH = 2.0**32
"""Upper bound on the sum of a batch's weights, so that sums of their fixed-point forms stay exact in 64 bits."""


def as_keys(keys: npt.ArrayLike) -> Keys:
    """Return ``keys`` as a one-dimensional int64 array; raises `ValueError` for another shape or type."""
    array = np.asarray(keys)
    if array.ndim != 1:
        raise ValueError(f"keys must be one-dimensional, got shape {array.shape}")
    if array.size and (array.dtype.kind != "i"):
        raise ValueError(f"keys must be int64 (view unsigned hashes with .view(np.int64)), got {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.int64)


def as_weights(weights: npt.ArrayLike, count: int) -> Floats:
    """Return ``weights`` as ``count`` finite, non-negative float64 values, or raise `ValueError`."""
    array = np.ascontiguousarray(weights, dtype=np.float64)
    if array.shape != (count,):
        raise ValueError(f"weights must have one value per key, shape ({count},), got {array.shape}")
    bad = np.flatnonzero(~((array >= 0) & (array < np.inf)))
    if bad.size:
        raise ValueError(f"weights must be finite and not negative, got {array[bad[0]]} at position {bad[0]}")
    if (heaviest := float(array.sum())) >= HEAVIEST_BATCH:
        raise ValueError(f"the weights of one batch must sum to less than 2**32, got {heaviest:.6g}")
    return array


def as_batch(keys: npt.ArrayLike, weights: npt.ArrayLike | None) -> tuple[Keys, Floats | None]:
    """Check one batch; None as weights means one event per key."""
    checked = as_keys(keys)
    return checked, None if weights is None else as_weights(weights, checked.size)


def as_factor(factor: float) -> float:
    """Return a decay factor; raises `ValueError` if it is outside (0, 1]."""
    if not 0.0 < factor <= 1.0:
        raise ValueError(f"a decay factor must lie in (0, 1], got {factor}")
    return float(factor)
