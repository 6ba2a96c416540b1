"""Arrays on disk for windows and bundles larger than memory."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from weir.contracts.scratch import naming_the_disk, scratch

__all__ = ["Spool", "blocks"]

_AT_ONCE: Final = 1 << 15


class Spool:
    """An array (n, width) that grows along its first dimension, in a temporary file.

    Parameters
    ----------
    width
        Numbers per line.
    dtype
        Data type.
    """

    def __init__(self, width: int, dtype: npt.DTypeLike) -> None:
        self._width, self._dtype, self._count = width, np.dtype(dtype), 0
        self._file = scratch()

    def append(self, lines: npt.NDArray[Any]) -> None:
        """Add lines (m, width); raises `OSError` if the disk is full."""
        self._count += len(lines)
        with naming_the_disk():
            self._file.write(np.ascontiguousarray(lines, self._dtype).data)
            self._file.flush()

    def finish(self) -> npt.NDArray[Any]:
        """Return the lines (n, width); no more can be added.

        The array is memory-mapped: the kernel keeps as much of it in memory as fits.
        """
        with self._file:
            if not self._count * self._width:
                return np.empty((self._count, self._width), self._dtype)
            return np.memmap(self._file, self._dtype, "r+", shape=(self._count, self._width))


def blocks(count: int) -> Iterator[slice]:
    """Cut `count` lines into blocks, for work with memory for one block."""
    return (slice(first, min(first + _AT_ONCE, count)) for first in range(0, count, _AT_ONCE))
