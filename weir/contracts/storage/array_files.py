"""Arrays that become files of a store: processes write their rows side by side, on one machine or on several.

Each number is written once, where it stays. An array that turns out not to be needed leaves no file.
"""

import os
import weakref
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from weir.contracts.storage.local_files import naming, new_draft
from weir.contracts.storage.store import FileEntry, Store

__all__ = ["ArrayDraft", "mapped", "write_lines"]


class ArrayDraft:
    """A NumPy file of a store, of zeros, that is not there yet; who has its disk changes it by its `path` (`mapped`).

    The file goes with the object, unless it is kept; what is mapped stays readable.

    Parameters
    ----------
    store, name
        What it is to become.
    shape, dtype
        Of the array.

    Raises
    ------
    OSError
        If the disk has no room for all of it.
    """

    def __init__(self, store: Store, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self._store, self._name, self._rows = store, name, shape[0]
        self.path = new_draft(store.drafted(name))
        self._gone = weakref.finalize(self, _remove, self.path, store, name.rpartition("/")[0])
        kind = np.dtype(dtype)
        with naming(store.path(name)), self.path.open("r+b") as file:
            described = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, described)
            file.flush()
            _take_room(self.path, file.fileno(), file.tell() + kind.itemsize * int(np.prod(shape)))

    def mapped(self) -> npt.NDArray[Any]:
        """Return the array, to be read: the kernel keeps in memory what there is room for."""
        return mapped(self.path)

    def keep(self) -> FileEntry:
        """Let it become the file, on disk and under its name, as `Store.write_with` does."""
        with naming(self._store.path(self._name)), self.path.open("r+b") as file:
            os.fsync(file.fileno())
        entry = self._store.take(self.path, self._name, rows=self._rows)
        self._gone()
        return entry


def mapped(path: Path, mode: Literal["r", "r+"] = "r") -> npt.NDArray[Any]:
    """Return the array of a NumPy file, to be read, or to be changed, too: all who have mapped it see that."""
    return np.asarray(np.load(path, mmap_mode=mode))


def write_lines(path: Path, first: int, lines: npt.NDArray[Any]) -> None:
    """Write lines (n, ...) of the array of a NumPy file, from number `first` on; they are on disk then.

    Other machines may write other lines meanwhile. A network file system that knows the rest of a page may write it
    back as well, over what others have written; where a file is synchronous, and open for writing only, it does not.
    """
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        start = file.tell() + first * lines.itemsize * int(np.prod(lines.shape[1:]))
    with naming(path), os.fdopen(os.open(path, os.O_WRONLY | os.O_DSYNC), "wb") as file:
        file.seek(start)
        file.write(np.ascontiguousarray(lines).data)


def _remove(path: Path, store: Store, folder: str) -> None:
    path.unlink(missing_ok=True)
    store.remove_if_empty(folder)


def _take_room(path: Path, descriptor: int, size: int) -> None:
    """Give a file its size; to write to a hole of a file would end the process where the disk is full."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: {size / 1e6:,.0f} MB are needed", str(path)) from error
