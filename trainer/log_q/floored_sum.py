"""The sum of values that all fade alike and none of which counts less than a floor, without reading them."""

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["FlooredSum"]

_BINS: Final = 10
"""Bits of a value's mantissa that choose its bin: so many times two bins to a power of two."""
_SUMMED: Final = 32
"""Bits of it that are summed: the sums are whole numbers, the same whatever came and went in between."""
_MANTISSA: Final = 52
_BIAS: Final = 1023
_SMALLEST: Final = 2.0**-1000
"""Less is counted as 0."""
_ZEROS: Final = -1
"""Stands for the bin of these values, whose sum is 0."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class FlooredSum:
    """The sum of ``max(value * scale, floor)`` over values that come and go, for any scale and floor.

    Values are counted by size, in bins that are at most 1/1024 wide. A call costs the values that come or go, or the
    bins, however many values there are. Only the values of the one bin that the floor cuts are taken together, which
    makes the sum too small, by at most a 4,096th of their share.
    """

    def __init__(self) -> None:
        self._first, self._zeros = 0, 0
        self._numbers, self._sums = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add(self, values: Floats) -> None:
        """Add values (n,), none below 0."""
        self._change(values, 1)

    def remove(self, values: Floats) -> None:
        """Remove values (n,) that were added, here or to another sum that `of` adds."""
        self._change(values, -1)

    @property
    def bins(self) -> Ints:
        """What was added and removed, (b, 3): the numbers of bins, how many values are in each, and their sums.

        Those of several sums, one after another, are those of their sum (`of`). One of them may have fewer values than
        none: those that it removes were added to another.
        """
        # As many may have come as gone, of different values.
        occupied = np.flatnonzero((self._numbers != 0) | (self._sums != 0))
        some = np.stack([occupied + self._first, self._numbers[occupied], self._sums[occupied]], 1)
        return np.concatenate([[[_ZEROS, self._zeros, 0]], some])

    @classmethod
    def of(cls, bins: Ints) -> "FlooredSum":
        """Return the sum of what `bins` (b, 3) of one or several sums say."""
        found, is_zero = cls(), bins[:, 0] == _ZEROS
        found._zeros = int(bins[is_zero, 1].sum())
        found._put(*bins[~is_zero].T)
        return found

    def total(self, scale: float, floor: float) -> float:
        """Return the sum; the same bits for the same values."""
        occupied = np.flatnonzero(self._numbers)
        exponents = ((occupied + self._first) >> _BINS) - (_BIAS + _SUMMED)
        sums = np.ldexp(self._sums[occupied].astype(np.float64), exponents) * scale
        return float(np.maximum(sums, self._numbers[occupied] * floor).sum() + self._zeros * floor)

    def _change(self, values: Floats, sign: int) -> None:
        some = values[values >= _SMALLEST]
        self._zeros += sign * (len(values) - len(some))
        bits = np.ascontiguousarray(some).view(np.int64)
        mantissas = bits >> (_MANTISSA - _SUMMED) & ((1 << _SUMMED) - 1) | 1 << _SUMMED
        self._put(bits >> (_MANTISSA - _BINS), sign, sign * mantissas)

    def _put(self, bins: Ints, numbers: Ints | int, sums: Ints) -> None:
        """Add to `bins` (n,), repeated or not, how many values come to each, and their sums."""
        if not len(bins):
            return
        self._reserve(int(bins.min()), int(bins.max()))
        np.add.at(self._numbers, bins - self._first, numbers)
        np.add.at(self._sums, bins - self._first, sums)

    def _reserve(self, lowest: int, highest: int) -> None:
        """Make room for bins up to and including `highest`, by whole powers of two."""
        if not len(self._numbers):
            self._first = lowest
        below = max(0, self._first - lowest)
        above = max(0, highest + 1 - self._first - len(self._numbers))
        if below or above:
            room = tuple(-(-missing >> _BINS) << _BINS for missing in (below, above))
            self._first -= room[0]
            self._numbers, self._sums = np.pad(self._numbers, room), np.pad(self._sums, room)
