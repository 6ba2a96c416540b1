"""Features of items and users: their names, their columns in windows, and their weights in bundles.

``features.npz`` holds the weights of item features. The trainer adds their vectors to the embedding of an item's row
(`weir.trainer.towers.features`); an item without a row has only these vectors. ``user-features.npz`` holds the weights
of user features, whose vectors are added to the user tower's output.

A window's examples have the user features of their events in the struct `user_features`. The window's manifest has
their names, the greatest length of lists, and the moments of numbers, so that readers need no extra pass.
"""

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator, Field, model_validator

from weir.contracts.base import columns
from weir.contracts.base.keys import hash_ids
from weir.contracts.base.models import FrozenModel
from weir.contracts.storage.documents import Document

__all__ = [
    "CATEGORICAL_TYPE",
    "DENSE_TYPE",
    "LARGEST",
    "MAX_DENSE",
    "MAX_VALUES",
    "NO_FEATURES",
    "FeatureNames",
    "FeatureWeights",
    "Moments",
    "StoredFeatureNames",
    "UserFeatures",
    "buckets_of",
    "lists_of_cells",
    "values_of",
]

MAX_VALUES: Final = 64
"""Most values that an item or a user may have of one categorical feature."""
MAX_DENSE: Final = 32
"""Most dense features."""
LARGEST: Final = 5.0
"""Clipping bound in standard deviations."""
_BETWEEN_VALUES: Final = "|"
CATEGORICAL_TYPE: Final = pa.list_(pa.string())
DENSE_TYPE: Final = pa.float64()
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
_Name = Annotated[str, Field(min_length=1)]


class FeatureNames(FrozenModel):
    """Names of features of items, or of users, which the log, the windows and the trainer share."""

    categorical: tuple[_Name, ...] = Field(
        default=(), description="fields of the log with a string or a list of strings about it"
    )
    dense: tuple[_Name, ...] = Field(
        default=(), max_length=MAX_DENSE, description="fields of the log with a number about it"
    )

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        known: set[str] = set()
        for name in self.all:
            if name in known:
                raise ValueError(f"{name!r} is named twice; each feature has one kind")
            known.add(name)
        return self

    @property
    def all(self) -> tuple[str, ...]:
        """All names, the categorical ones first."""
        return (*self.categorical, *self.dense)

    def agreeing(self, known: "FeatureNames") -> "FeatureNames":
        """Return these names without the names that `known` has as the other kind."""
        return FeatureNames(
            categorical=tuple(name for name in self.categorical if name not in known.dense),
            dense=tuple(name for name in self.dense if name not in known.categorical),
        )

    @property
    def fields(self) -> list[Any]:
        """The Arrow fields of the features: lists of strings, and doubles; null if unknown."""
        texts = [pa.field(name, CATEGORICAL_TYPE) for name in self.categorical]
        return texts + [pa.field(name, DENSE_TYPE) for name in self.dense]


NO_FEATURES: Final = FeatureNames()


def lists_of_cells(cells: pa.Array) -> pa.Array:
    """Return the lists (n,) in cells of CSV or TSV such as ``jazz|new``; null stays null."""
    return pc.split_pattern(cells, _BETWEEN_VALUES).cast(CATEGORICAL_TYPE)


def values_of(lists: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return the list index of each value in lists (m,), ascending, and the values (m,); null lists have none.

    Arrow's `list_parent_indices` also counts values hidden under a null, which `flatten` leaves out.
    """
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(lists)), lengths), lists.flatten()


def _known(stored: Any) -> Any:
    if isinstance(stored, dict):
        return {name: value for name, value in stored.items() if name in FeatureNames.model_fields}
    return stored


StoredFeatureNames = Annotated[FeatureNames, BeforeValidator(_known)]
"""In documents, unknown fields (of later minor formats) are ignored; in settings they are refused."""


class Moments:
    """Count, mean and sum of squared deviations of numbers, merged window by window.

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
        """Add the values that `other` summarises."""
        if not other.count:
            return
        total, shift = self.count + other.count, other.mean - self.mean
        self.squares += other.squares + shift**2 * self.count * other.count / total
        self.mean += shift * other.count / total
        self.count = total

    @property
    def stored(self) -> tuple[float, float, float]:
        """Count, mean and squares: the arguments that restore the moments."""
        return float(self.count), self.mean, self.squares

    @property
    def deviation(self) -> float:
        """The standard deviation; 0 for fewer than two values."""
        return float((self.squares / max(self.count, 1)) ** 0.5)

    def standardised(self, values: Doubles) -> Doubles:
        """Return values in standard deviations from the mean, clipped at 5; 0 for NaN, and if there is no deviation."""
        if not self.deviation:
            return np.zeros_like(values)
        scaled: Doubles = np.clip((values - self.mean) / self.deviation, -LARGEST, LARGEST)
        return np.nan_to_num(scaled)


def buckets_of(name: str, lists: pa.Array, buckets: int) -> npt.NDArray[np.int32]:
    """Return the buckets of a feature's lists of values, (n, longest), padded with -1."""
    place, values = values_of(lists)
    counts = np.bincount(place, minlength=len(lists))
    within = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
    found = np.full((len(lists), max(counts.max(initial=0), 1)), -1, np.int32)
    # The name is hashed, too: a value means something else under another name.
    spelled = pc.binary_join_element_wise(name, values, "\0")
    found[place, within] = hash_ids(spelled).view(np.uint64) % buckets
    return found


@dataclass(frozen=True, eq=False)
class FeatureWeights:
    """Turns features into vectors: `values` (buckets, d) by hash, `dense` (d, 32) for standardised numbers."""

    names: FeatureNames
    values: Floats
    dense: Floats
    moments: tuple[Moments, ...]

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read ``features.npz``; raises `ValueError` or `KeyError` for other content."""
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
        """Return ``features.npz``; equal weights give equal bytes."""
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
        """Return the summed feature vectors of n items or users, (n, d), averaged over the values of a feature.

        `features` has columns as `FeatureNames.fields`; a missing column means unknown values.
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
        """Return `embeddings` of n = `count` items or users by `buckets` (n, V), -1 for none, and `numbers` (n,)."""
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


class UserFeatures(Document):
    """Statistics of the user features of a window's examples."""

    categorical: dict[str, int] = Field(
        default_factory=dict, description="most values that an example has of each, at least 1"
    )
    dense: dict[str, tuple[float, float, float]] = Field(
        default_factory=dict, description="count, mean and sum of squared deviations of the values of positives"
    )

    @classmethod
    def of(cls, rows: pa.Table, names: FeatureNames) -> Self:
        """Return the statistics of examples with `label` and the struct `user_features` of fields `names.fields`."""
        if not names.all:
            return cls()
        struct = rows[columns.USER_FEATURES].combine_chunks()
        positive = pc.greater(rows[columns.LABEL], 0)
        return cls(
            categorical={name: _longest(struct.field(name)) for name in names.categorical},
            dense={name: _moments(struct.field(name).filter(positive)).stored for name in names.dense},
        )

    @classmethod
    def nothing(cls, names: FeatureNames) -> Self:
        """Return the statistics of a window without examples."""
        return cls(categorical=dict.fromkeys(names.categorical, 1), dense=dict.fromkeys(names.dense, (0.0, 0.0, 0.0)))

    @classmethod
    def merged(cls, parts: Iterable["UserFeatures"]) -> Self:
        """Return the statistics of all parts of a window, in their order; all have the same names."""
        categorical: dict[str, int] = {}
        dense: dict[str, Moments] = {}
        for part in parts:
            for name, longest in part.categorical.items():
                categorical[name] = max(categorical.get(name, 1), longest)
            for name, moments in part.moments.items():
                dense.setdefault(name, Moments()).merge(moments)
        return cls(categorical=categorical, dense={name: moments.stored for name, moments in dense.items()})

    @property
    def names(self) -> FeatureNames:
        """The names, in the order of the struct's fields."""
        return FeatureNames(categorical=tuple(self.categorical), dense=tuple(self.dense))

    @property
    def moments(self) -> dict[str, Moments]:
        """The moments of the positives' numbers, by name."""
        return {name: Moments(*stored) for name, stored in self.dense.items()}


def _longest(lists: pa.Array) -> int:
    return int(pc.max(pc.list_value_length(lists)).as_py() or 1)


def _moments(numbers: pa.Array) -> Moments:
    found = Moments()
    found.add(numbers.drop_null().to_numpy(zero_copy_only=False).astype(np.float64))
    return found
