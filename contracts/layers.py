"""Arrays by row of which a new version shares everything that has not changed with the one before."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Layers"]

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Layers(Generic[Scalar]):
    """The values of rows: `base` (n, ...), and `over` (m, ...) with what came later.

    `places` (rows,) int32 says where each row is: below n in `base`, from n on in `over`; -1: nowhere. None: all rows
    are those of the base. Nothing is ever changed in place.
    """

    base: npt.NDArray[Scalar]
    over: npt.NDArray[Scalar]
    places: npt.NDArray[np.int32] | None = None

    @classmethod
    def of(cls, base: npt.NDArray[Scalar]) -> "Layers[Scalar]":
        """Return the rows of an array."""
        return cls(base, base[:0])

    def __len__(self) -> int:
        return len(self.base if self.places is None else self.places)

    def __getitem__(self, rows: Any) -> Any:
        """Return the values of rows of any shape, or of one row."""
        if self.places is None:
            return self.base[rows]
        places = self.places[rows]
        if not np.ndim(places):
            return self.base[places] if places < len(self.base) else self.over[places - len(self.base)]
        found = np.empty((*places.shape, *self.base.shape[1:]), self.base.dtype)
        early = places < len(self.base)
        found[early] = self.base[places[early]]
        found[~early] = self.over[places[~early] - len(self.base)]
        return found

    def replaced(
        self, rows: npt.NDArray[np.int64], values: npt.NDArray[Scalar], gone: npt.NDArray[np.int64]
    ) -> "Layers[Scalar]":
        """Return these rows without `gone`, and with `values` (m, ...) at distinct `rows` (m,), new ones among them."""
        known = np.arange(len(self.base), dtype=np.int32) if self.places is None else self.places
        places = np.full(max(len(known), int(rows.max(initial=-1)) + 1), -1, np.int32)
        places[: len(known)] = known
        places[gone] = -1
        places[rows] = len(self.base) + len(self.over) + np.arange(len(rows))
        return Layers(self.base, np.concatenate([self.over, values]), places)
