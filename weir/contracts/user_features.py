"""User features: what the log records of the user, or of the moment, with each event.

A window's examples hold them as they came with the event, in the struct `user_features`. Its manifest says which there
are, how wide the lists are at most, and the moments of numbers, so that no reader needs a pass of its own for these.
"""

from collections.abc import Iterable
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from weir.contracts import columns
from weir.contracts.documents import Document
from weir.contracts.feature_weights import Moments
from weir.contracts.features import FeatureNames

__all__ = ["UserFeatures"]


class UserFeatures(Document):
    """The user features of a window's examples."""

    categorical: dict[str, int] = Field(
        default_factory=dict, description="most values that an example has of each, at least 1"
    )
    dense: dict[str, tuple[float, float, float]] = Field(
        default_factory=dict, description="count, mean and sum of squared deviations of those of the positives"
    )

    @classmethod
    def of(cls, rows: pa.Table, names: FeatureNames) -> Self:
        """Return those of examples with `label` and the struct `user_features`, whose fields are `names.fields`."""
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
        """Return those of a window without an example."""
        return cls(categorical=dict.fromkeys(names.categorical, 1), dense=dict.fromkeys(names.dense, (0.0, 0.0, 0.0)))

    @classmethod
    def merged(cls, parts: Iterable["UserFeatures"]) -> Self:
        """Return those of all parts of a window, in their order; all have the same names."""
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
        """Those of the positives' numbers, by name."""
        return {name: Moments(*stored) for name, stored in self.dense.items()}


def _longest(lists: pa.Array) -> int:
    return int(pc.max(pc.list_value_length(lists)).as_py() or 1)


def _moments(numbers: pa.Array) -> Moments:
    found = Moments()
    found.add(numbers.drop_null().to_numpy(zero_copy_only=False).astype(np.float64))
    return found
