"""Arrays that new versions share with older ones, and sets of numbers in ascending order."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Layers", "Overlay", "ascending"]


Number = TypeVar("Number", bound=np.generic)


def ascending(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return the distinct ones of `values` (n,), ascending.

    For integers `np.unique` fills a hash table first, which takes 15 ms for 40,000 of them, where
    sorting takes less than one.
    """
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


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


Rows = npt.NDArray[np.int64]
_NONE: Final[Rows] = np.empty(0, np.int64)
_BLOCK: Final = 1 << 14
"""Rows of a piece."""


@dataclass(frozen=True, eq=False)
class Layers(Generic[Scalar]):
    """The values of `count` rows: `base` (n, ...), and on it `over`, with what came later.

    The rows `gone`, ascending, have no value. Nothing is ever changed in place, and a change costs what has changed
    since the base, not what the base holds.
    """

    base: npt.NDArray[Scalar]
    over: Overlay[Scalar]
    gone: Rows
    count: int

    @classmethod
    def of(cls, base: npt.NDArray[Scalar], gone: Rows = _NONE) -> "Layers[Scalar]":
        """Return the rows of an array, of which `gone`, ascending, have no value."""
        return cls(base, Overlay.empty(base), gone, len(base))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: Any) -> Any:
        """Return the values of rows of any shape, or of one row; of a row that is gone, nothing of use."""
        if not len(self.over):
            return self.base[rows]
        places, late = self.over.find(rows)
        if not np.ndim(rows):
            return self.over.values[places] if late else self.base[rows]
        found = np.empty((*places.shape, *self.base.shape[1:]), self.base.dtype)
        found[~late] = self.base[rows[~late]]
        found[late] = self.over.values[places[late]]
        return found

    def in_base(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Say which rows of the base, of any shape, still have their value there."""
        there = ~self.over.find(rows)[1]
        if len(self.gone):
            places = np.minimum(np.searchsorted(self.gone, rows), len(self.gone) - 1)
            there &= self.gone[places] != rows
        return there

    def merged(self, empty: Any) -> npt.NDArray[Scalar]:
        """Return the values of all rows as one array; `empty` is the value of rows that are gone."""
        return self._part(0, self.count, empty)

    def pieces(self, empty: Any) -> Iterator[npt.NDArray[Scalar]]:
        """Yield what `merged` returns, some rows at a time."""
        for first in range(0, self.count, _BLOCK):
            yield self._part(first, min(first + _BLOCK, self.count), empty)

    def _part(self, first: int, last: int, empty: Any) -> npt.NDArray[Scalar]:
        known = self.base[first:last]
        found = np.empty((last - first, *known.shape[1:]), known.dtype)
        found[: len(known)] = known
        later, gone = (slice(*np.searchsorted(rows, [first, last])) for rows in (self.over.keys, self.gone))
        found[self.over.keys[later] - first] = self.over.values[later]
        found[self.gone[gone] - first] = empty
        return found

    @property
    def left(self) -> int:
        """How many rows still have their value in the base."""
        size = len(self.base)
        return size - int(np.searchsorted(self.over.keys, size)) - int(np.searchsorted(self.gone, size))

    def replaced(self, rows: Rows, values: npt.NDArray[Scalar], gone: Rows) -> "Layers[Scalar]":
        """Return these rows without `gone`, and with `values` (m, ...) at distinct `rows` (m,), new ones among them."""
        all_gone = np.concatenate([self.gone, gone])
        return Layers(
            self.base,
            self.over.without(gone).replaced(rows, values),
            # As a rule there are none, and many rows.
            np.setdiff1d(all_gone, rows) if len(all_gone) else all_gone,
            max(self.count, int(rows.max(initial=-1)) + 1),
        )
