"""What came later than an array that stays as it is: some keys and their values."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Overlay"]

Keys = npt.NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Overlay(Generic[Scalar]):
    """The `values` (m, ...) of distinct `keys` (m,), which ascend. Nothing is ever changed in place.

    A new version costs what the overlay holds, whatever it lies on.
    """

    keys: Keys
    values: npt.NDArray[Scalar]

    @classmethod
    def empty(cls, like: npt.NDArray[Scalar]) -> "Overlay[Scalar]":
        """Return an overlay without keys, for values as the rows of an array."""
        return cls(np.empty(0, np.int64), like[:0])

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, keys: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the places of keys of any shape among those here, and which of them are here."""
        if not len(self.keys):
            return np.zeros(np.shape(keys), np.int64), np.zeros(np.shape(keys), np.bool_)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return places, self.keys[places] == keys

    def without(self, keys: Keys) -> "Overlay[Scalar]":
        """Return an overlay without some keys, of which not all need be here."""
        places, here = self.find(keys)
        if not here.any():
            return self
        return Overlay(np.delete(self.keys, places[here]), np.delete(self.values, places[here], axis=0))

    def replaced(self, keys: Keys, values: npt.NDArray[Scalar]) -> "Overlay[Scalar]":
        """Return an overlay in which the distinct `keys` (n,) have the `values` (n, ...), whatever they had."""
        kept = self.without(keys)
        every = np.concatenate([kept.keys, keys])
        order = np.argsort(every, kind="stable")
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        # Straight to their places: values put together first and then ordered would be copied twice.
        merged = np.empty((len(every), *self.values.shape[1:]), self.values.dtype)
        merged[places[: len(kept)]], merged[places[len(kept) :]] = kept.values, values
        return Overlay(every[order], merged)
