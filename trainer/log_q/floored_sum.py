"""The sum of ``max(value * scale, floor)`` over many values, from a histogram, without a pass over the values."""

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["FlooredSum"]

_BINS: Final = 10
"""Mantissa bits that select a bin: 2^10 bins per power of two."""
_SUMMED: Final = 32
"""Mantissa bits that are summed: sums are integers, so adding and removing values leaves no rounding error."""
_MANTISSA: Final = 52
_BIAS: Final = 1023
_SMALLEST: Final = 2.0**-1000
"""Smaller values count as 0."""
_ZEROS: Final = -1
"""Bin number that stands for values counted as 0."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class FlooredSum:
    """The sum of ``max(value * scale, floor)`` over a changing set of values, for any scale and floor.

    Values are counted in a histogram with bins at most 1/1024 wide (relative). The cost of a call is proportional to
    the values added or removed, or to the number of bins, not to the number of values. Only in the bin that contains
    the floor is the sum approximate: too small by at most 1/4096 of that bin's share.
    """

    def __init__(self) -> None:
        self._first, self._zeros = 0, 0
        self._numbers, self._sums = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add(self, values: Floats) -> None:
        """Add values (n,), all at least 0."""
        self._change(values, 1)

    def remove(self, values: Floats) -> None:
        """Remove values (n,) that were added to this sum, or to another sum with which `of` combines it."""
        self._change(values, -1)

    @property
    def bins(self) -> Ints:
        """Bins as rows (b, 3): bin number, number of values, integer sum.

        Concatenated bins of several sums are the bins of their total (`of`). Counts are negative if values were removed
        that were added to another sum.
        """
        # A bin may have count 0 and a sum other than 0: as many values were removed as added, but different ones.
        occupied = np.flatnonzero((self._numbers != 0) | (self._sums != 0))
        some = np.stack([occupied + self._first, self._numbers[occupied], self._sums[occupied]], 1)
        return np.concatenate([[[_ZEROS, self._zeros, 0]], some])

    @classmethod
    def of(cls, bins: Ints) -> "FlooredSum":
        """Return the total of one or several sums, from their concatenated `bins` (b, 3)."""
        result, is_zero = cls(), bins[:, 0] == _ZEROS
        result._zeros = int(bins[is_zero, 1].sum())
        result._put(*bins[~is_zero].T)
        return result

    def total(self, scale: float, floor: float) -> float:
        """Return the sum for a scale and a floor; the same values give the same bits."""
        occupied = np.flatnonzero(self._numbers)
        exponents = ((occupied + self._first) >> _BINS) - (_BIAS + _SUMMED)
        sums = np.ldexp(self._sums[occupied].astype(np.float64), exponents) * scale
        return float(np.maximum(sums, self._numbers[occupied] * floor).sum() + self._zeros * floor)

    def _change(self, values: Floats, sign: int) -> None:
        """Add values (n,), or remove them if `sign` is -1."""
        some = values[values >= _SMALLEST]
        self._zeros += sign * (len(values) - len(some))
        bits = np.ascontiguousarray(some).view(np.int64)
        mantissas = bits >> (_MANTISSA - _SUMMED) & ((1 << _SUMMED) - 1) | 1 << _SUMMED
        self._put(bits >> (_MANTISSA - _BINS), sign, sign * mantissas)

    def _put(self, bins: Ints, numbers: Ints | int, sums: Ints) -> None:
        """Add counts and sums to `bins` (n,), repetitions allowed."""
        if not len(bins):
            return
        self._reserve(int(bins.min()), int(bins.max()))
        np.add.at(self._numbers, bins - self._first, numbers)
        np.add.at(self._sums, bins - self._first, sums)

    def _reserve(self, lowest: int, highest: int) -> None:
        """Make room for bins `lowest` to `highest`, in whole powers of two."""
        if not len(self._numbers):
            self._first = lowest
        below = max(0, self._first - lowest)
        above = max(0, highest + 1 - self._first - len(self._numbers))
        if below or above:
            room = tuple(-(-missing >> _BINS) << _BINS for missing in (below, above))
            self._first -= room[0]
            self._numbers, self._sums = np.pad(self._numbers, room), np.pad(self._sums, room)
