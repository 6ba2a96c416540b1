"""An exact sum of weights, independent of the order, the batches and the merges."""

from typing import Final, Self

import numpy as np

from weir.sketches.protocol import Floats

_HIGH_BITS: Final = 20
_LOW_BITS: Final = 30
_UNITS: Final = 1 << (_HIGH_BITS + _LOW_BITS)
_WIDTH: Final = 16


class Total:
    """A sum of event weights as a fixed-point number, in units of ``2**-50``, held as a Python integer.

    Floating-point addition depends on its order, so two merged sketches would differ in the last bits from the
    sketch of the whole stream. Integer addition does not; the value is rounded once, when it is read.
    """

    def __init__(self, units: int = 0) -> None:
        self._units = units

    @property
    def value(self) -> float:
        """The sum in events, correctly rounded to float64."""
        return self._units / _UNITS

    def add(self, count: int, weights: Floats | None) -> None:
        """Add ``count`` events, or the sum of their weights if given."""
        if weights is None:
            self._units += count * _UNITS
            return
        high, low = np.divmod(weights * float(1 << _HIGH_BITS), 1.0)
        low_units = int(np.rint(low * float(1 << _LOW_BITS)).astype(np.int64).sum())
        self._units += (int(high.astype(np.int64).sum()) << _LOW_BITS) + low_units

    def merge(self, other: "Total") -> None:
        """Add another total."""
        self._units += other._units

    def subtract(self, other: "Total") -> None:
        """Subtract another total; the result is at least zero."""
        self._units = max(0, self._units - other._units)

    def decay(self, factor: float) -> None:
        """Multiply by a factor in (0, 1], rounded to the nearest unit."""
        numerator, denominator = factor.as_integer_ratio()
        self._units = (2 * self._units * numerator + denominator) // (2 * denominator)

    def to_bytes(self) -> bytes:
        """Return sixteen little-endian bytes."""
        return self._units.to_bytes(_WIDTH, "little")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the output of `to_bytes`."""
        return cls(int.from_bytes(data, "little"))
