"""Shuffle on disk: lines are written in one order and read in another, with memory for one partition."""

import os
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.contracts.scratch import naming_the_disk, scratch

__all__ = ["Ints", "Shuffled"]

_PART: Final = 1 << 17
"""Lines per partition in memory: 26 MB with 50 rows each."""

Ints = npt.NDArray[np.int64]


class Shuffled:
    """Lines (count, width) of int32, written in one order and read in another, through a file.

    Lines of the same partition are written next to each other, each with its target position: reading needs no random
    access, which would cost a seek per line for windows larger than memory.

    Parameters
    ----------
    count
        Number of lines.
    width
        Numbers per line.
    size
        Lines per group.
    """

    def __init__(self, count: int, width: int, size: int) -> None:
        self._count, self._width, self._size = count, width, size
        self._part = max(_PART // size, 1) * size
        self._next = np.arange(0, count, self._part)
        self._file = scratch()

    @property
    def none(self) -> npt.NDArray[np.int32]:
        """An empty array of lines, (0, width)."""
        return np.empty((0, self._width), np.int32)

    def append(self, lines: npt.NDArray[np.int32]) -> None:
        """Add lines (k, 1 + width), each after its position in the reading order.

        Raises
        ------
        OSError
            If the disk is full.
        """
        parts = lines[:, 0] // self._part
        order = np.argsort(parts, kind="stable")
        for chosen in np.split(order, np.flatnonzero(np.diff(parts[order])) + 1):
            if len(chosen):
                self._write(int(parts[chosen[0]]), lines[chosen])

    def _write(self, part: int, lines: npt.NDArray[np.int32]) -> None:
        left, at = memoryview(lines.tobytes()), int(self._next[part]) * self._bytes
        self._next[part] += len(lines)
        with naming_the_disk():
            while left:
                done = os.pwrite(self._file.fileno(), left, at)
                left, at = left[done:], at + done

    def groups(self, start: int = 0) -> Iterator[npt.NDArray[np.int32]]:
        """Yield groups of lines (size, width), from group `start` on; the last group may be smaller.

        The file is deleted after the last group.
        """
        with self._file:
            for first in range(start * self._size // self._part * self._part, self._count, self._part):
                lines = self._read(first)
                for at in range(max(start * self._size - first, 0), len(lines), self._size):
                    yield lines[at : at + self._size]

    def _read(self, first: int) -> npt.NDArray[np.int32]:
        found = np.empty((min(self._part, self._count - first), 1 + self._width), np.int32)
        with naming_the_disk():
            os.preadv(self._file.fileno(), [found.data], first * self._bytes)
        lines = np.empty((len(found), self._width), np.int32)
        # Lines within a partition are in writing order.
        lines[found[:, 0] - first] = found[:, 1:]
        return lines

    @property
    def _bytes(self) -> int:
        return 4 * (1 + self._width)
