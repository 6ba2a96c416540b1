"""Features: what the log records of an item or a user beside its id. Their names, and how windows store them."""

from typing import Annotated, Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator, Field, model_validator

from weir.contracts.models import FrozenModel

__all__ = [
    "CATEGORICAL_TYPE",
    "DENSE_TYPE",
    "MAX_DENSE",
    "MAX_VALUES",
    "NO_FEATURES",
    "FeatureNames",
    "StoredFeatureNames",
    "lists_of_cells",
    "values_of",
]

MAX_VALUES: Final = 64
"""Most values that an item or a user may have of one categorical feature."""

MAX_DENSE: Final = 32
"""Most dense features."""

CATEGORICAL_TYPE: Final = pa.list_(pa.string())
DENSE_TYPE: Final = pa.float64()

_Name = Annotated[str, Field(min_length=1)]


class FeatureNames(FrozenModel):
    """Features of items, or of users, by name; the log, the windows and the trainer use the same names."""

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
        """Return these names without those that are known as the other kind."""
        return FeatureNames(
            categorical=tuple(name for name in self.categorical if name not in known.dense),
            dense=tuple(name for name in self.dense if name not in known.categorical),
        )

    @property
    def fields(self) -> list[Any]:
        """The Arrow fields of the features: lists of strings and doubles, null where nothing is known."""
        texts = [pa.field(name, CATEGORICAL_TYPE) for name in self.categorical]
        return texts + [pa.field(name, DENSE_TYPE) for name in self.dense]


NO_FEATURES: Final = FeatureNames()

_BETWEEN_VALUES: Final = "|"


def lists_of_cells(cells: pa.Array) -> pa.Array:
    """Return the lists that cells of CSV or TSV spell (n,), as ``jazz|new``; null stays null."""
    return pc.split_pattern(cells, _BETWEEN_VALUES).cast(CATEGORICAL_TYPE)


def values_of(lists: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return the place of its list for each value of lists (m,), ascending, and the values (m,); null lists have none.

    Arrow's `list_parent_indices` also counts values that lie hidden under a null, which `flatten` leaves out.
    """
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(lists)), lengths), lists.flatten()


def _known(stored: Any) -> Any:
    if isinstance(stored, dict):
        return {name: value for name, value in stored.items() if name in FeatureNames.model_fields}
    return stored


StoredFeatureNames = Annotated[FeatureNames, BeforeValidator(_known)]
"""In documents, fields that a later minor format adds are ignored; in settings, unknown names are refused."""
