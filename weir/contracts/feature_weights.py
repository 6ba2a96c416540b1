"""What a bundle knows of features: the vectors that they stand for, as the trainer has them.

``features.npz`` holds those of items. The trainer adds them to the embedding of an item's row
(`weir.trainer.towers.features`); an item without a row is what its features say. ``user-features.npz`` holds those of
users, which are added to what the user tower makes of a history.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts.features import MAX_DENSE, FeatureNames, values_of
from weir.contracts.keys import hash_ids

__all__ = ["LARGEST", "FeatureWeights", "Moments", "buckets_of"]

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

LARGEST: Final = 5.0
"""Standard deviations; values further out are cut to this."""


class Moments:
    """Count, mean and sum of squared deviations of all numbers seen, merged window by window.

    Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979, eq. 2.1.
    """

    def __init__(self, count: float = 0.0, mean: float = 0.0, squares: float = 0.0) -> None:
        self.count, self.mean, self.squares = count, mean, squares

    def add(self, values: Doubles) -> None:
        """Add values (n,)."""
        if len(values):
            mean = float(values.mean())
            self.merge(Moments(len(values), mean, float(np.square(values - mean).sum())))

    def merge(self, other: "Moments") -> None:
        """Add the values that others are the moments of."""
        if not other.count:
            return
        total, shift = self.count + other.count, other.mean - self.mean
        self.squares += other.squares + shift**2 * self.count * other.count / total
        self.mean += shift * other.count / total
        self.count = total

    @property
    def stored(self) -> tuple[float, float, float]:
        """What they are made of again: count, mean and squares."""
        return float(self.count), self.mean, self.squares

    @property
    def deviation(self) -> float:
        """Their standard deviation; 0 for a lone one, and without any."""
        return float((self.squares / max(self.count, 1)) ** 0.5)

    def standardised(self, values: Doubles) -> Doubles:
        """Return values less the mean, in standard deviations, cut at 5; unknown ones (NaN) and a lone one are 0."""
        if not self.deviation:
            return np.zeros_like(values)
        scaled: Doubles = np.clip((values - self.mean) / self.deviation, -LARGEST, LARGEST)
        return np.nan_to_num(scaled)


def buckets_of(name: str, lists: pa.Array, buckets: int) -> npt.NDArray[np.int32]:
    """Return the buckets of lists of values of a feature, (n, longest), -1 where there is none."""
    place, values = values_of(lists)
    counts = np.bincount(place, minlength=len(lists))
    within = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
    found = np.full((len(lists), max(counts.max(initial=0), 1)), -1, np.int32)
    # The name is part of what is hashed: a value means something else under another name.
    spelled = pc.binary_join_element_wise(name, values, "\0")
    found[place, within] = hash_ids(spelled).view(np.uint64) % buckets
    return found


@dataclass(frozen=True, eq=False)
class FeatureWeights:
    """Vectors of hashed values, (buckets, d), and of standardised numbers, `dense` (d, 32), which have `moments`."""

    names: FeatureNames
    values: Floats
    dense: Floats
    moments: tuple[Moments, ...]

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read ``features.npz``; raises `ValueError` or `KeyError` where it is something else."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            names = FeatureNames.model_validate_json(arrays["names"].tobytes())
            moments = tuple(Moments(*row) for row in arrays["moments"].tolist())
            found = cls(names, arrays["values"], arrays["dense"], moments)
        shapes = found.values.shape[1:], found.dense.shape, len(moments)
        if shapes != (found.dense.shape[:1], (len(found.dense), MAX_DENSE), len(names.dense)):
            raise ValueError(
                f"holds arrays of shapes {found.values.shape}, {found.dense.shape} and {len(moments)} moments"
            )
        if not (np.isfinite(found.values).all() and np.isfinite(found.dense).all()):
            raise ValueError("holds NaN or infinite values")
        return found

    def encode(self) -> bytes:
        """Return ``features.npz``: equal weights give equal bytes."""
        out, names = io.BytesIO(), json.dumps(self.names.model_dump()).encode()
        rows = [one.stored for one in self.moments]
        np.savez(
            out,
            names=np.frombuffer(names, np.uint8),
            values=self.values,
            dense=self.dense,
            moments=np.array(rows, np.float64).reshape(-1, 3),
        )
        return out.getvalue()

    def embeddings(self, features: pa.Table) -> Floats:
        """Return what features say of n items or users, (n, d): of categorical ones the mean of their values' vectors.

        `features` has columns as `FeatureNames.fields`; one that it lacks is unknown of all.
        """
        there = set(features.column_names)
        buckets = {
            name: buckets_of(name, _one(features, name), len(self.values))
            for name in self.names.categorical
            if name in there
        }
        numbers = {name: features[name].to_numpy().astype(np.float64) for name in self.names.dense if name in there}
        return self.combined(len(features), buckets, numbers)

    def combined(
        self, count: int, buckets: Mapping[str, npt.NDArray[np.int32]], numbers: Mapping[str, Doubles]
    ) -> Floats:
        """Return the same of so many items or users, by their `buckets` (n, V), -1 for none, and `numbers` (n,)."""
        found = np.zeros((count, len(self.dense)), np.float32)
        for name in self.names.categorical:
            if name in buckets:
                found += self._mean(buckets[name])
        for number, (name, moments) in enumerate(zip(self.names.dense, self.moments, strict=True)):
            if name in numbers:
                values = moments.standardised(numbers[name])
                found += values[:, None].astype(np.float32) * self.dense[:, number]
        return found

    def _mean(self, buckets: npt.NDArray[np.int32]) -> Floats:
        total = np.zeros((len(buckets), self.values.shape[1]), np.float32)
        for column in buckets.T:
            there = column >= 0
            total[there] += self.values[column[there]]
        mean: Floats = total / np.maximum((buckets >= 0).sum(1, keepdims=True), 1).astype(np.float32)
        return mean


def _one(features: pa.Table, name: str) -> pa.Array:
    return features[name].combine_chunks()
