"""The interface of all frequency estimators, and the checks of their arguments."""

from abc import abstractmethod
from typing import Protocol, Self, TypeVar, runtime_checkable

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
    """Return checked keys and weights of one batch; weights of None mean one event per key. Raises `ValueError`."""
    checked = as_keys(keys)
    return checked, None if weights is None else as_weights(weights, checked.size)


def as_factor(factor: float) -> float:
    """Return a decay factor; raises `ValueError` if it is outside (0, 1]."""
    if not 0.0 < factor <= 1.0:
        raise ValueError(f"a decay factor must lie in (0, 1], got {factor}")
    return float(factor)


@runtime_checkable
class FrequencyEstimator(Protocol):
    """Estimated counts of int64 keys in a stream, and log Q: the logarithm of a key's share of all events.

    Keys are ``xxh3_64`` of an id as int64; counts are float64, because weights and decay make them fractional.
    Implementations inherit from this class and share `log_q`.
    """

    @property
    @abstractmethod
    def total(self) -> float:
        """Exact number of events counted so far, weighted and decayed."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory of the counts in bytes."""

    @abstractmethod
    def update(self, keys: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> None:
        """Count a batch: ``keys`` (n,) int64, duplicates allowed, n = 0 allowed; ``weights`` (n,) default to 1.

        Raises
        ------
        ValueError
            If keys are not int64, or weights are negative, not finite or of another length; nothing is counted.
        """

    @abstractmethod
    def estimate(self, keys: npt.ArrayLike) -> Floats:
        """Return the estimated count of each key, shape (n,); 0 for an absent key, apart from collisions."""

    @abstractmethod
    def merge(self, other: "FrequencyEstimator") -> None:
        """Add the counts of another estimator; raises `ValueError` if their parameters differ, and names them."""

    @abstractmethod
    def decay(self, factor: float) -> None:
        """Multiply every count and the total by a factor in (0, 1]."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Serialise in the little-endian format of `weir.sketches.codec`, the same on every platform."""

    @classmethod
    @abstractmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the output of `to_bytes`; raises `ValueError` for foreign, truncated or altered bytes."""

    def log_q(self, keys: npt.ArrayLike, *, unseen: float = 0.5) -> Floats:
        """Return the natural logarithm of each key's estimated probability, shape (n,): finite and at most 0.

        Parameters
        ----------
        keys
            int64, shape (n,).
        unseen
            Least count of a key, in events, above 0: lower estimates are raised to it, so that keys that were never
            counted have a finite log Q.
        """
        return log_probability(self.estimate(keys), self.total, unseen)


EstimatorT = TypeVar("EstimatorT", bound=FrequencyEstimator)


def log_probability(counts: Floats, total: float, unseen: float) -> Floats:
    """Return ``log(counts / total)``, with counts raised to at least ``unseen`` and the ratio limited to 1."""
    if not 0.0 < unseen < float("inf"):
        raise ValueError(f"unseen must be a positive, finite count, got {unseen}")
    raised = np.maximum(counts, unseen)
    return np.log(raised) - np.log(np.maximum(raised, total))


def combinable(mine: EstimatorT, other: FrequencyEstimator) -> EstimatorT:
    """Return `other` if it can be merged into `mine`; raises `ValueError` for another class or other parameters."""
    if not isinstance(other, type(mine)):
        raise ValueError(f"{type(mine).__name__} and {type(other).__name__} cannot be combined")
    ours, theirs = parameters_of(mine), parameters_of(other)
    if differing := [f"{name} {ours[name]!r} and {theirs[name]!r}" for name in ours if ours[name] != theirs[name]]:
        raise ValueError(f"cannot combine estimators that differ: {', '.join(differing)}")
    return other


def parameters_of(estimator: FrequencyEstimator) -> dict[str, object]:
    """Return the parameters of an estimator by name; two estimators of a class with equal parameters can be merged."""
    return {name: getattr(estimator, name) for name in getattr(estimator, "PARAMETERS", ())}
