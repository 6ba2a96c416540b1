"""Examples of a window on disk in training order, and their distribution over batches and ranks."""

import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from weir.contracts.base.string_arrays import naming_the_disk, scratch
from weir.trainer.ranks.workers import Workers

__all__ = ["Ints", "ShardedBatches", "Shuffled", "Spool", "blocks"]


_AT_ONCE: Final = 1 << 15
"""Lines per block."""


_PART: Final = 1 << 17
"""Lines per partition in memory: 26 MB with 50 rows each."""

Ints = npt.NDArray[np.int64]


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
        """Return the array (n, width), memory-mapped; nothing can be appended afterwards."""
        with self._file:
            if not self._count * self._width:
                return np.empty((self._count, self._width), self._dtype)
            return np.memmap(self._file, self._dtype, "r+", shape=(self._count, self._width))


def blocks(count: int) -> Iterator[slice]:
    """Return slices that cut `count` lines into blocks of 32,768, so that work needs memory for one block only."""
    return (slice(first, min(first + _AT_ONCE, count)) for first in range(0, count, _AT_ONCE))


class Shuffled:
    """Lines (count, width) of int32, written in one order and read in another, through a file.

    Lines of the same partition of the reading order are written next to each other, each with its target position.
    Reading therefore needs no random access, which would cost a seek per line for windows larger than memory.

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
        """Write lines (k, 1 + width); the first number of each is its position in the reading order.

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
        """Write lines at the end of their partition."""
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
        """Read the partition that starts with line `first`, in the reading order."""
        stored = np.empty((min(self._part, self._count - first), 1 + self._width), np.int32)
        with naming_the_disk():
            os.preadv(self._file.fileno(), [stored.data], first * self._bytes)
        lines = np.empty((len(stored), self._width), np.int32)
        # Lines within a partition are in writing order.
        lines[stored[:, 0] - first] = stored[:, 1:]
        return lines

    @property
    def _bytes(self) -> int:
        """Bytes of a stored line."""
        return 4 * (1 + self._width)


class ShardedBatches:
    """Assignment of examples to batches of `size`, each split over the ranks; `here` is this rank's range in a batch.

    Parameters
    ----------
    order
        Numbers of the examples (m,) in training order.
    size
        Examples per batch, over all ranks; the last batch may be smaller.
    workers
        The ranks.
    """

    def __init__(self, order: Ints, size: int, workers: Workers) -> None:
        self._order, self.size, self._workers = order, size, workers
        self._shares = [range(size)[share] for share in workers.shares(size)]
        self.here = self._shares[workers.rank]

    @property
    def lines(self) -> int:
        """Number of examples of this rank in all batches."""
        whole, rest = divmod(len(self._order), self.size)
        return whole * len(self.here) + len(range(rest)[self.here.start : self.here.stop])

    def batches(self, start: int) -> Iterator[Ints]:
        """Yield the example numbers of each batch, (size,) or fewer, from batch `start` on."""
        return (self._order[at : at + self.size] for at in range(start * self.size, len(self._order), self.size))

    def places(self, count: int) -> npt.NDArray[np.int32]:
        """Return for each of `count` examples the position in training order, (count,); -1 for an example left out."""
        places = np.full(count, -1, np.int32)
        places[self._order] = np.arange(len(self._order), dtype=np.int32)
        return places

    def exchanged(self, places: npt.NDArray[np.int32], lines: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Send the lines (k, width) of examples to the ranks that train on them; collective.

        `places` (k,) are the examples' positions in training order. Returns the lines of this rank, (m, 1 + width): the
        first number of each is its position among this rank's examples.
        """
        kept = np.flatnonzero(places >= 0)
        batch, within = np.divmod(places[kept].astype(np.int64), self.size)
        firsts = np.array([share.start for share in self._shares])
        owners = np.searchsorted(firsts, within, side="right") - 1
        lengths = np.array([len(share) for share in self._shares])
        local = batch * lengths[owners] + within - firsts[owners]
        placed = np.concatenate([local[:, None].astype(np.int32), lines[kept]], 1)
        return self._workers.deliver(torch.from_numpy(placed), owners).numpy()
