"""User features of queries: the vectors that they add to the users' vectors, for a whole batch at once."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.contracts import columns
from weir.contracts.feature_weights import FeatureWeights
from weir.contracts.features import CATEGORICAL_TYPE, DENSE_TYPE

__all__ = ["NO_FEATURES", "Features", "Said", "said_in", "values_in"]

Floats = npt.NDArray[np.float32]

Features = Mapping[str, tuple[str, ...] | float]
"""User features of a query, by name: values of categorical features, or a number."""

NO_FEATURES: Features = {}


class Said(NamedTuple):
    """Feature vectors of n queries, `vectors` (n, dimension), None without features, and names the bundle lacks."""

    vectors: Floats | None
    missing: list[list[str]]

    @classmethod
    def of(cls, weights: FeatureWeights | None, queries: Sequence[Features]) -> Self:
        """Embed the features of queries by a bundle's weights; a feature of the wrong kind counts as missing."""
        kinds: dict[str, type] = {}
        if weights is not None:
            kinds = dict.fromkeys(weights.names.categorical, tuple) | dict.fromkeys(weights.names.dense, float)
        missing = [[name for name, said in one.items() if not isinstance(said, kinds.get(name, ()))] for one in queries]
        names = {name for one, lacking in zip(queries, missing, strict=True) for name in one.keys() - set(lacking)}
        if weights is None or not names:
            return cls(None, missing)
        table = pa.table({name: _column(name, kinds[name], queries) for name in sorted(names)})
        return cls(weights.embeddings(table), missing)

    def of_query(self, number: int) -> Floats | None:
        """Return the feature vector of a query, (dimension,); None if it is zero."""
        if self.vectors is None or not self.vectors[number].any():
            return None
        vector: Floats = self.vectors[number]
        return vector


def values_in(features: Features) -> int:
    """Count the values of features; a number counts as one."""
    return sum(1 if isinstance(said, float) else len(said) for said in features.values())


def said_in(examples: pa.Table) -> list[Features]:
    """Return the user features of each example, without missing values."""
    if columns.USER_FEATURES not in examples.column_names:
        return [NO_FEATURES] * len(examples)
    return [
        {name: tuple(said) if isinstance(said, list) else said for name, said in row.items() if said not in (None, [])}
        for row in examples[columns.USER_FEATURES].to_pylist()
    ]


def _column(name: str, kind: type, queries: Sequence[Features]) -> pa.Array:
    values = [said if isinstance(said := one.get(name), kind) else None for one in queries]
    return pa.array(values, DENSE_TYPE if kind is float else CATEGORICAL_TYPE)
