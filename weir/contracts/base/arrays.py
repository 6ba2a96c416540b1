"""Immutable maps and rows whose versions share arrays (`Overlay`, `Layers`), and the distinct values of an array."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Layers", "Overlay", "ascending"]

Number = TypeVar("Number", bound=np.generic)
Scalar = TypeVar("Scalar", bound=np.generic)
Rows = npt.NDArray[np.int64]
_NONE: Final[Rows] = np.empty(0, np.int64)
_BLOCK: Final = 1 << 14
"""Rows per piece."""
Keys = npt.NDArray[np.int64]


def ascending(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return the distinct elements of `values` (n,), ascending.

    For 40,000 integers `np.unique` takes 15 ms, because it fills a hash table first; sorting takes less than one.
    """
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


@dataclass(frozen=True, eq=False)
class Overlay(Generic[Scalar]):
    """Immutable map from distinct, ascending `keys` (m,) to `values` (m, ...).

    A changed copy costs time and memory in proportion to m, not to the array whose rows the overlay replaces.
    """

    keys: Keys
    values: npt.NDArray[Scalar]

    @classmethod
    def empty(cls, like: npt.NDArray[Scalar]) -> "Overlay[Scalar]":
        """Return an overlay without keys, whose values have the type and shape of the rows of `like`."""
        return cls(np.empty(0, np.int64), like[:0])

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, keys: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the places of `keys` (any shape) in this overlay, and a mask of the keys that the overlay has."""
        if not len(self.keys):
            return np.zeros(np.shape(keys), np.int64), np.zeros(np.shape(keys), np.bool_)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return places, self.keys[places] == keys

    def without(self, keys: Keys) -> "Overlay[Scalar]":
        """Return an overlay without `keys`; keys that are absent are ignored."""
        places, here = self.find(keys)
        if not here.any():
            return self
        return Overlay(np.delete(self.keys, places[here]), np.delete(self.values, places[here], axis=0))

    def replaced(self, keys: Keys, values: npt.NDArray[Scalar]) -> "Overlay[Scalar]":
        """Return an overlay in which the distinct `keys` (n,) have the `values` (n, ...), overwriting old ones."""
        kept = self.without(keys)
        every = np.concatenate([kept.keys, keys])
        order = np.argsort(every, kind="stable")
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        # Write values straight to their places: concatenating and then ordering them would copy them twice.
        merged = np.empty((len(every), *self.values.shape[1:]), self.values.dtype)
        merged[places[: len(kept)]], merged[places[len(kept) :]] = kept.values, values
        return Overlay(every[order], merged)


@dataclass(frozen=True, eq=False)
class Layers(Generic[Scalar]):
    """Immutable values of `count` rows: the array `base` (n, ...), and the values of changed and new rows in `over`.

    The rows `gone`, ascending, have no value. A changed copy costs in proportion to the rows changed since `base`, not
    to the size of `base`.
    """

    base: npt.NDArray[Scalar]
    over: Overlay[Scalar]
    gone: Rows
    count: int

    @classmethod
    def of(cls, base: npt.NDArray[Scalar], gone: Rows = _NONE) -> "Layers[Scalar]":
        """Return the rows of an array; the rows `gone`, ascending, have no value."""
        return cls(base, Overlay.empty(base), gone, len(base))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: Any) -> Any:
        """Return the values of one row or of rows of any shape; the value of a row that is gone is arbitrary."""
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
        """Return a mask of the base rows (any shape) that still have their value in the base."""
        there = ~self.over.find(rows)[1]
        if len(self.gone):
            places = np.minimum(np.searchsorted(self.gone, rows), len(self.gone) - 1)
            there &= self.gone[places] != rows
        return there

    def merged(self, empty: Any) -> npt.NDArray[Scalar]:
        """Return the values of all rows as one array; rows that are gone have the value `empty`."""
        return self._part(0, self.count, empty)

    def pieces(self, empty: Any) -> Iterator[npt.NDArray[Scalar]]:
        """Yield the values of all rows in order, in blocks; rows that are gone have the value `empty`."""
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
        """Number of rows that still have their value in the base."""
        size = len(self.base)
        return size - int(np.searchsorted(self.over.keys, size)) - int(np.searchsorted(self.gone, size))

    def replaced(self, rows: Rows, values: npt.NDArray[Scalar], gone: Rows) -> "Layers[Scalar]":
        """Return a copy with `values` (m, ...) at distinct `rows` (m,), old or new, and no values at rows `gone`."""
        all_gone = np.concatenate([self.gone, gone])
        return Layers(
            self.base,
            self.over.without(gone).replaced(rows, values),
            # Usually no row is gone, and `rows` are many.
            np.setdiff1d(all_gone, rows) if len(all_gone) else all_gone,
            max(self.count, int(rows.max(initial=-1)) + 1),
        )
