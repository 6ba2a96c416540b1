"""Arrays and files in memory that several processes map: what one of them has written, the others read in place.

A thing is pickled without its large arrays. Those lie in anonymous files (`memfd_create`), which processes hand to each
other as open descriptors: nothing is on a disk, no limit of ``/dev/shm`` applies, and the kernel frees a file as soon
as nobody has it open or mapped, however its users have ended.
"""

import io
import mmap
import os
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["MappedArrays", "MemoryFile", "Package", "SharedArrays", "StoredFile"]

Array = npt.NDArray[Any]

_LARGE: Final = 1 << 16
"""Bytes from which on an array has a file of its own; smaller ones are copied to every process."""


class MemoryFile(NamedTuple):
    """An anonymous file: `number` tells it from all others of its writer, `descriptor` is that of this process."""

    number: int
    descriptor: int
    dtype: str = "u1"
    shape: tuple[int, ...] = ()

    @property
    def path(self) -> str:
        """Where this process can open it by name, as long as the descriptor is open."""
        return f"/proc/self/fd/{self.descriptor}"

    def mapped(self) -> Array:
        """Return the array that it holds, without reading it; it stays valid when the descriptor is closed."""
        pages = mmap.mmap(self.descriptor, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        size = int(np.prod(self.shape, dtype=np.int64))
        return np.frombuffer(pages, self.dtype, size).reshape(self.shape)


class StoredFile(NamedTuple):
    """Stands in a thing for a file that `SharedArrays.store` has written; its reader finds a `path` there."""

    number: int
    path: str = ""


class Package(NamedTuple):
    """A thing as its reader gets it: the pickle of it, and all the files that this names."""

    pickle: MemoryFile
    files: tuple[MemoryFile, ...]


@dataclass
class MappedArrays:
    """Opens packages. What a package shares with the one before is the same object in both."""

    views: dict[int, Array] = field(default_factory=dict)

    def open(self, package: Package) -> Any:
        """Return the thing; of its arrays nothing is read, and none can be written to."""
        files = {file.number: file for file in package.files}
        thing = _Unpickler(package.pickle, files, self.views).load()
        for number in self.views.keys() - files.keys():
            del self.views[number]
        return thing


@dataclass
class SharedArrays:
    """Writes packages. An array that the package before held, as its reader `mapped` it, is not written again."""

    mapped: MappedArrays = field(default_factory=MappedArrays)
    _files: dict[int, MemoryFile] = field(default_factory=dict, init=False)
    _last: int = field(default=0, init=False)

    def store(self, write: Callable[[str], object]) -> StoredFile:
        """Have a file of the next package written, by its path."""
        file = self._new()
        write(file.path)
        return StoredFile(file.number)

    def package(self, thing: object) -> Package:
        """Return a thing for its readers; files that it does not name are closed here."""
        out = io.BytesIO()
        pickler = _Pickler(out, {id(view): number for number, view in self.mapped.views.items()}, self._write)
        pickler.dump(thing)
        number = self._write(np.frombuffer(out.getbuffer(), np.uint8))
        self._close(self._files.keys() - pickler.used - {number})
        return Package(self._files[number], tuple(self._files[each] for each in sorted(pickler.used)))

    def _write(self, array: Array) -> int:
        file = self._new(array.dtype.str, array.shape)
        left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        while left.nbytes:
            left = left[os.write(file.descriptor, left) :]
        return file.number

    def _new(self, dtype: str = "u1", shape: tuple[int, ...] = ()) -> MemoryFile:
        self._last += 1
        file = MemoryFile(self._last, os.memfd_create(f"weir-{self._last}"), dtype, shape)
        self._files[file.number] = file
        return file

    def _close(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            os.close(self._files.pop(number).descriptor)


class _Pickler(pickle.Pickler):
    """Leaves out large arrays and stored files: `numbers` are those of arrays by id, and `write` gives one a number."""

    def __init__(self, out: io.BytesIO, numbers: dict[int, int], write: Callable[[Array], int]) -> None:
        super().__init__(out, pickle.HIGHEST_PROTOCOL)
        self.used: set[int] = set()
        self._numbers, self._write = numbers, write
        self._written: list[Array] = []

    def persistent_id(self, obj: Any) -> tuple[str, int] | None:
        if isinstance(obj, StoredFile):
            self.used.add(obj.number)
            return "file", obj.number
        if not isinstance(obj, np.ndarray) or obj.dtype.hasobject or obj.nbytes < _LARGE:
            return None
        number = self._numbers.get(id(obj))
        if number is None:
            number = self._numbers[id(obj)] = self._write(obj)
            self._written.append(obj)  # another array must not get its id meanwhile
        self.used.add(number)
        return "array", number


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: MemoryFile, files: dict[int, MemoryFile], views: dict[int, Array]) -> None:
        super().__init__(io.BytesIO(file.mapped().tobytes()))
        self._files, self._views = files, views

    def persistent_load(self, pid: Any) -> Any:
        kind, number = pid
        if kind == "file":
            return StoredFile(number, self._files[number].path)
        if number not in self._views:
            self._views[number] = self._files[number].mapped()
        return self._views[number]
