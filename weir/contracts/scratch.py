"""Files of no name, and arrays in them: the kernel keeps in memory what there is room for."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["in_scratch", "naming_the_disk", "scratch", "zeros_in_scratch"]

_AT_ONCE: Final = 1 << 16


def scratch() -> IO[bytes]:
    """Return a file of no name: it goes when it is closed, or with the process, however that ends."""
    return tempfile.TemporaryFile(prefix="weir-")


def in_scratch(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy of an array as a mapped file that goes with it; raises `OSError` if the disk is full."""
    if not array.size:
        return array
    with scratch() as file, naming_the_disk():
        file.write(np.ascontiguousarray(array).data)
        file.flush()
        return np.asarray(np.memmap(file, array.dtype, "r+", shape=array.shape))


def zeros_in_scratch(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return zeros (count,) as a mapped file that goes with them; raises `OSError` if the disk is full."""
    if not count:
        return np.zeros(0, dtype)
    blank = np.zeros(min(count, _AT_ONCE), dtype)
    with scratch() as file, naming_the_disk():
        # Written, for they need their room now: to change a hole of a file on a full disk ends the process.
        for first in range(0, count, _AT_ONCE):
            file.write(blank[: count - first].data)
        file.flush()
        return np.asarray(np.memmap(file, dtype, "r+", shape=(count,)))


@contextmanager
def naming_the_disk() -> Iterator[None]:
    """Say of an error of the disk which one it is."""
    try:
        yield
    except OSError as error:
        use = "where windows are while they are trained on, and parts of checkpoints and bundles (TMPDIR names another)"
        where = f"{tempfile.gettempdir()}, {use}"
        raise OSError(error.errno, error.strerror, where) from error
