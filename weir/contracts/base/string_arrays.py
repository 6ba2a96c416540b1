"""String columns as offsets and bytes, in memory or in mapped temporary files."""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Texts", "in_scratch", "naming_the_disk", "scratch", "zeros_in_scratch"]


_AT_ONCE: Final = 1 << 16


def scratch() -> IO[bytes]:
    """Return an unnamed temporary file, which disappears when it is closed or the process ends in any way."""
    return tempfile.TemporaryFile(prefix="weir-")


def in_scratch(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy of an array as a mapped temporary file; raises `OSError` if the disk is full."""
    if not array.size:
        return array
    with scratch() as file, naming_the_disk():
        file.write(np.ascontiguousarray(array).data)
        file.flush()
        return np.asarray(np.memmap(file, array.dtype, "r+", shape=array.shape))


def zeros_in_scratch(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return zeros (count,) as a mapped temporary file; raises `OSError` if the disk is full."""
    if not count:
        return np.zeros(0, dtype)
    blank = np.zeros(min(count, _AT_ONCE), dtype)
    with scratch() as file, naming_the_disk():
        # Write the zeros to reserve the space: touching a mapped hole of a file on a full disk kills the process.
        for first in range(0, count, _AT_ONCE):
            file.write(blank[: count - first].data)
        file.flush()
        return np.asarray(np.memmap(file, dtype, "r+", shape=(count,)))


@contextmanager
def naming_the_disk() -> Iterator[None]:
    """Add the temporary folder and its use to an `OSError`."""
    try:
        yield
    except OSError as error:
        use = "where windows are while they are trained on, and parts of checkpoints and bundles (TMPDIR names another)"
        where = f"{tempfile.gettempdir()}, {use}"
        raise OSError(error.errno, error.strerror, where) from error


@dataclass(frozen=True, eq=False)
class Texts:
    """Column of strings, read like an array of objects: `offsets` (n + 1,) into the UTF-8 `data`."""

    offsets: npt.NDArray[np.int64]
    data: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, texts: npt.NDArray[np.object_]) -> Self:
        """Return the column of an array of strings (n,)."""
        return cls.joined([pa.array(texts, pa.large_string())], len(texts))

    @classmethod
    def joined(cls, pieces: Iterable[pa.Array], count: int) -> Self:
        """Return the strings of Arrow arrays, `count` in all without nulls; memory holds one array at a time."""
        offsets, data = np.zeros(count + 1, np.int64), bytearray()
        for text in _texts(pieces, offsets):
            data += text.data
        return cls(offsets, np.frombuffer(data, np.uint8))

    @classmethod
    def spooled(cls, pieces: Iterable[pa.Array], count: int) -> Self:
        """Return the same column as `joined`, but in mapped temporary files; raises `OSError` if the disk is full."""
        offsets, size = zeros_in_scratch(count + 1, np.int64), 0
        with scratch() as file, naming_the_disk():
            for text in _texts(pieces, offsets):
                size += file.write(text.data)
            file.flush()
            # An empty file cannot be mapped.
            data = np.memmap(file, np.uint8, "r+", shape=(size,)) if size else np.zeros(0, np.uint8)
        return cls(offsets, np.asarray(data))

    def spread(self, rows: npt.NDArray[np.integer[Any]], count: int) -> "Texts":
        """Return a column of `count` rows with these strings at `rows` (n,), ascending, and "" in other rows."""
        sizes = np.zeros(count + 1, np.int64)
        sizes[rows + 1] = np.diff(self.offsets)
        return Texts(np.cumsum(sizes), self.data)

    @property
    def dtype(self) -> np.dtype[np.object_]:
        """NumPy type of an element: object, as elements are Python strings."""
        return np.dtype(object)

    @property
    def shape(self) -> tuple[int]:
        """The number of strings, as a tuple."""
        return (len(self.offsets) - 1,)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: Any) -> Any:
        """Return the strings of one row, a slice, or rows of any shape."""
        if isinstance(rows, slice):
            return self._column[rows].to_numpy(zero_copy_only=False)
        if np.ndim(rows) == 0:
            return self._column[int(rows)].as_py()
        return self.take(np.ravel(rows)).to_numpy(zero_copy_only=False).reshape(np.shape(rows))

    def take(self, rows: npt.NDArray[np.integer[Any]]) -> pa.Array:
        """Return the strings of rows (n,) as an Arrow array; Arrow releases the GIL meanwhile."""
        return self._column.take(pa.array(rows))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[np.object_]:
        """Return all strings as an array of objects."""
        return np.asarray(self._column.to_numpy(zero_copy_only=False), dtype)

    def __getstate__(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        return self.offsets, self.data

    def __setstate__(self, state: tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]) -> None:
        object.__setattr__(self, "offsets", state[0])
        object.__setattr__(self, "data", state[1])

    @cached_property
    def _column(self) -> Any:
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.LargeStringArray.from_buffers(len(self), *buffers[1:], buffers[0])


def _texts(pieces: Iterable[pa.Array], offsets: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bytes of Arrow arrays, and write the end of each string to `offsets` (n + 1,)."""
    last = size = 0
    for piece in pieces:
        bounds, text = _buffers(piece)
        offsets[last + 1 : last + len(bounds)] = bounds[1:] + (size - bounds[0])
        last, size = last + len(bounds) - 1, size + int(bounds[-1] - bounds[0])
        yield text[bounds[0] : bounds[-1]]


def _buffers(piece: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the bounds (n + 1,) of the strings of an Arrow array, and the bytes that the bounds index."""
    column = piece.cast(pa.large_string())
    _, bounds, data = column.buffers()
    if bounds is None:
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    of_mine = slice(column.offset, column.offset + len(column) + 1)
    return np.frombuffer(bounds, np.int64)[of_mine], np.frombuffer(data or b"", np.uint8)
