"""Lines of numbers in another order, however many: written by parts, which fit into memory, and read part by part."""

import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainer.step.spool import naming_the_disk, scratch

__all__ = ["Ints", "Shuffled"]

_PART: Final = 1 << 17
"""Lines in memory together: with 50 rows each, 26 MB."""

Ints = npt.NDArray[np.int64]


class Shuffled:
    """Lines (n, width) of int32 that come in one order and go in another, through a file.

    Those that will be in memory together are written beside each other: nothing is read here and there, which would
    take the disk a seek for each line of a window that is larger than the memory.

    Parameters
    ----------
    order
        The numbers of lines (m,) in the order in which they go; those that it leaves out are dropped.
    count
        All lines, n.
    width
        Numbers per line.
    size
        Lines that are used together, a batch: all parts but the last end with one.
    """

    def __init__(self, order: Ints, count: int, width: int, size: int) -> None:
        self._order, self._width, self._size = order, width, max(_PART // size, 1) * size
        self._part = np.full(count, -1, np.int32)
        self._part[order] = np.arange(len(order)) // self._size
        self._next = np.arange(0, len(order), self._size)
        self._appended = 0
        self._file = scratch()

    def append(self, lines: npt.NDArray[Any]) -> None:
        """Add the next lines (k, width) of all n; raises `OSError` if the disk is full."""
        parts = self._part[self._appended : self._appended + len(lines)]
        self._appended += len(lines)
        by_part = np.argsort(parts, kind="stable")
        kept = by_part[np.searchsorted(parts[by_part], 0) :]
        for chosen in np.split(kept, np.flatnonzero(np.diff(parts[kept])) + 1):
            if len(chosen):
                self._write(int(parts[chosen[0]]), lines[chosen].astype(np.int32))

    def _write(self, part: int, lines: npt.NDArray[np.int32]) -> None:
        left, at = memoryview(lines.tobytes()), int(self._next[part]) * self._bytes
        self._next[part] += len(lines)
        with naming_the_disk():
            while left:
                done = os.pwrite(self._file.fileno(), left, at)
                left, at = left[done:], at + done

    def parts(self, start: int = 0) -> Iterator[tuple[Ints, npt.NDArray[np.int32]]]:
        """Yield the numbers of the lines that come next, (k,), and these lines (k, width); `start` are passed over.

        The file goes with the last of them.
        """
        with self._file:
            for part in range(start // self._size, len(self._next)):
                passed = max(start - part * self._size, 0)
                yield self._numbers(part)[passed:], self._read(part)[passed:]

    def _read(self, part: int) -> npt.NDArray[np.int32]:
        numbers = self._numbers(part)
        lines = np.empty((len(numbers), self._width), np.int32)
        with naming_the_disk():
            os.preadv(self._file.fileno(), [lines.data], part * self._size * self._bytes)
        # They were written as they came.
        return lines[np.argsort(np.argsort(numbers))]

    def _numbers(self, part: int) -> Ints:
        return self._order[part * self._size : (part + 1) * self._size]

    @property
    def _bytes(self) -> int:
        return 4 * self._width
