"""The protocol of all frequency estimators."""

from abc import abstractmethod
from typing import Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from weir.sketches.arrays import Floats


@runtime_checkable
class FrequencyEstimator(Protocol):
    """Counts of int64 keys in a stream, and their share of it as log Q.

    Keys are ``xxh3_64`` of an id as int64; counts are float64, because weights and decay make them fractional.
    Implementations inherit from this class and share `log_q`.
    """

    @property
    @abstractmethod
    def total(self) -> float:
        """Number of events counted so far, weighted and decayed, exact."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory that the counts take."""

    @abstractmethod
    def update(self, keys: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> None:
        """Count a batch: ``keys`` (n,) int64, duplicates allowed, n = 0 allowed; ``weights`` (n,) default to 1.

        Raises
        ------
        ValueError
            When keys are not int64, or weights are negative, not finite or of another length. Nothing is counted then.
        """

    @abstractmethod
    def estimate(self, keys: npt.ArrayLike) -> Floats:
        """Estimated count of each key, shape (n,); 0 for a key never seen, apart from collisions."""

    @abstractmethod
    def merge(self, other: "FrequencyEstimator") -> None:
        """Add the counts of another estimator; `ValueError` names the parameter in which the two differ."""

    @abstractmethod
    def decay(self, factor: float) -> None:
        """Multiply every count and the total by a factor in (0, 1]."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Return the estimator in the little-endian format of `weir.sketches.codec`, the same on every platform."""

    @classmethod
    @abstractmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote; foreign, truncated or altered bytes raise `ValueError`."""

    def log_q(self, keys: npt.ArrayLike, *, unseen: float = 0.5) -> Floats:
        """Natural logarithm of the estimated probability of each key, shape (n,): finite and never above 0.

        Parameters
        ----------
        keys
            int64, shape (n,).
        unseen
            Count given to keys whose estimate is lower, in events; above 0.
        """
        return log_probability(self.estimate(keys), self.total, unseen)


EstimatorT = TypeVar("EstimatorT", bound=FrequencyEstimator)


def log_probability(counts: Floats, total: float, unseen: float) -> Floats:
    """``log(counts / total)`` with counts raised to ``unseen`` first and the ratio held at or below 1."""
    if not 0.0 < unseen < float("inf"):
        raise ValueError(f"unseen must be a positive, finite count, got {unseen}")
    raised = np.maximum(counts, unseen)
    return np.log(raised) - np.log(np.maximum(raised, total))


def combinable(mine: EstimatorT, other: FrequencyEstimator) -> EstimatorT:
    """Return `other`, or raise `ValueError` where it is of another class, naming every parameter that differs."""
    if not isinstance(other, type(mine)):
        raise ValueError(f"{type(mine).__name__} and {type(other).__name__} cannot be combined")
    ours, theirs = parameters_of(mine), parameters_of(other)
    if differing := [f"{name} {ours[name]!r} and {theirs[name]!r}" for name in ours if ours[name] != theirs[name]]:
        raise ValueError(f"cannot combine estimators that differ: {', '.join(differing)}")
    return other


def parameters_of(estimator: FrequencyEstimator) -> dict[str, object]:
    """Return the attributes that its class names in ``PARAMETERS``; equal ones can be merged."""
    return {name: getattr(estimator, name) for name in getattr(estimator, "PARAMETERS", ())}
