"""NumPy files of a store that several processes, on one machine or several, fill with rows at the same time.

The draft is a file of full size beside its target: each number is written once, where it stays.
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
    """Draft of a NumPy file of zeros for a store; processes that share its disk write to its `path` (`mapped`).

    `keep` makes the draft the file `name` of the store; a draft that is not kept is removed together with the object,
    and mapped arrays stay readable. Raises `OSError` if the disk has no room for the whole array.
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
        """Return the array, read-only and mapped: the kernel keeps in memory what fits."""
        return mapped(self.path)

    def keep(self) -> FileEntry:
        """Publish the draft under its name, synced to disk, as `Store.write_with` does."""
        with naming(self._store.path(self._name)), self.path.open("r+b") as file:
            os.fsync(file.fileno())
        entry = self._store.take(self.path, self._name, rows=self._rows)
        self._gone()
        return entry


def mapped(path: Path, mode: Literal["r", "r+"] = "r") -> npt.NDArray[Any]:
    """Return the mapped array of a NumPy file; with mode "r+" it is writable, and all mappings see the changes."""
    return np.asarray(np.load(path, mmap_mode=mode))


def write_lines(path: Path, first: int, lines: npt.NDArray[Any]) -> None:
    """Write rows, `lines` (n, ...), to the array of a NumPy file from row `first` on, and sync them to disk.

    Other machines may write other rows meanwhile. A network file system that has the rest of a page cached may write
    it back over rows from other machines; it does not for a file that is opened write-only and synchronous.
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
    """Allocate the file's full size: writing to a mapped hole on a full disk kills the process."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: {size / 1e6:,.0f} MB are needed", str(path)) from error
