"""The files of one bundle, verified and decoded; every error names the file."""

import io
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from weir.contracts.base import columns
from weir.contracts.base.errors import IncompatibleBundleError
from weir.contracts.base.keys import ItemKeys
from weir.contracts.base.string_arrays import Texts, in_scratch, zeros_in_scratch
from weir.contracts.bundles.bundle_log import BundleLog
from weir.contracts.bundles.manifest import BUNDLE_ITEMS_SCHEMA, BundleFile, BundleManifest

__all__ = ["BundleFiles", "BundleItems", "MappedFiles", "is_finite"]

_BLOCK: Final = 1 << 14
_DECODED: Final = 1 << 16
"""Items decoded at a time, so that memory holds a whole column only once."""

Strings = npt.NDArray[np.object_]


class BundleItems(NamedTuple):
    """Columns of ``items.parquet``, (n,) each: index rows, ids, keys and decayed counts."""

    rows: npt.NDArray[np.int32]
    ids: Strings
    keys: ItemKeys
    popularity: npt.NDArray[np.float64]


@dataclass(frozen=True)
class BundleFiles:
    """Reader of a bundle's files into memory; a wrong checksum raises `CorruptArtefactError`."""

    log: BundleLog
    manifest: BundleManifest

    def has(self, name: str) -> bool:
        """Return whether the manifest lists a file."""
        return any(entry.name == name for entry in self.manifest.files)

    def items(self) -> BundleItems:
        """Return ``items.parquet``; requires distinct items and finite popularities."""
        data = self._data(BundleFile.ITEMS)
        file = self.guarded(BundleFile.ITEMS, lambda: pq.ParquetFile(pa.BufferReader(pa.py_buffer(data))))
        schema = file.schema_arrow
        self.require(BundleFile.ITEMS, schema.equals(BUNDLE_ITEMS_SCHEMA), f"has the schema {schema}")
        items: BundleItems = self.guarded(BundleFile.ITEMS, partial(self._decoded, file))
        finite = bool(np.isfinite(items.popularity).all())
        self.require(BundleFile.ITEMS, finite, "holds a popularity that is NaN or infinite")
        keys = np.sort(items.keys)
        self.require(BundleFile.ITEMS, bool((keys[1:] > keys[:-1]).all()), "has the same item more than once")
        return items

    def _decoded(self, file: pq.ParquetFile) -> BundleItems:
        count = file.metadata.num_rows
        return BundleItems(
            _numbers(file, columns.ROW, self.room(count, np.int32)),
            self.strings(_pieces(file, columns.ITEM_ID), count),
            ItemKeys(_numbers(file, columns.ITEM_KEY, self.room(count, np.int64))),
            _numbers(file, columns.POPULARITY, self.room(count, np.float64)),
        )

    def strings(self, pieces: Iterable[pa.Array], count: int) -> Strings:
        """Return the strings of Arrow arrays, `count` in all, as Python strings, which are the fastest to read."""
        found, last = np.empty(count, object), 0
        for piece in pieces:
            found[last : last + len(piece)] = piece.to_numpy(zero_copy_only=False)
            last += len(piece)
        return found

    def room(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an uninitialised array (count,) for the caller to fill and keep."""
        return np.empty(count, dtype)

    def kept(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an array in the form to keep it in: the array itself, or in `MappedFiles` a mapped file."""
        return values

    def each(self, *reads: Callable[[], Any]) -> list[Any]:
        """Return the results of `reads`, run in sequence: memory holds one file besides the results."""
        return [read() for read in reads]

    def matrix(self, name: str, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
        """Return a file of finite float32 numbers of this shape."""
        matrix = self.array(name, np.float32, shape)
        self.require(name, is_finite(matrix), "holds NaN or infinite values")
        return np.ascontiguousarray(matrix)

    def array(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return the array of a NumPy file of this type and shape."""
        found: npt.NDArray[Any] = self.guarded(name, partial(_array, self._data(name)))
        wanted = np.dtype(dtype)
        problem = f"is {found.dtype} of shape {found.shape}, expected {wanted} of shape {shape}"
        self.require(name, found.dtype == wanted and found.shape == shape, problem)
        return found

    def _data(self, name: str) -> bytes | mmap:
        return self.log.read(self.manifest, name)

    def decode(self, name: str, decoder: Callable[[bytes], Any]) -> Any:
        """Return what `decoder` makes of the verified bytes of a file."""
        return self.guarded(name, partial(decoder, self.log.read(self.manifest, name)))

    def guarded(self, name: str, action: Callable[[], Any]) -> Any:
        """Return the result of `action`; any exception becomes an `IncompatibleBundleError` that names the file."""
        try:
            return action()
        except Exception as error:  # each format's library has errors of its own; what matters is whose file it is
            raise self.fault(name, f"cannot be used: {error}") from error

    def require(self, name: str, holds: bool, otherwise: str) -> None:
        """Raise `fault` with the problem `otherwise` unless `holds`."""
        if not holds:
            raise self.fault(name, otherwise)

    def fault(self, name: str, problem: str) -> IncompatibleBundleError:
        """Return the error of a file that matches its manifest and cannot be used."""
        return IncompatibleBundleError(self.log.store.path(f"{self.manifest.folder}/{name}"), problem)


class MappedFiles(BundleFiles):
    """Reader of a bundle's files as mapped files, for infrequent reads: the kernel keeps in memory what fits.

    Decoded columns are temporary files; writing them raises `OSError` if the disk is full.
    """

    def _data(self, name: str) -> mmap:
        with self.log.store.local(self.manifest.folder, self.manifest.file(name)) as path, path.open("rb") as file:
            return mmap(file.fileno(), 0, access=ACCESS_READ)

    def each(self, *reads: Callable[[], Any]) -> list[Any]:
        """Return the results of `reads`, run in parallel: training waits for them, and mapped files need no memory."""
        with ThreadPoolExecutor(len(reads)) as threads:
            started = [threads.submit(read) for read in reads]
            return [one.result() for one in started]

    def strings(self, pieces: Iterable[pa.Array], count: int) -> Strings:
        """Return the strings of Arrow arrays, `count` in all, as `Texts`: a third of the memory of Python strings."""
        return cast("Strings", Texts.spooled(pieces, count))

    def room(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array (count,) of zeros, as a mapped file, for the caller to fill and keep."""
        return zeros_in_scratch(count, dtype)

    def kept(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an array as a mapped file."""
        if isinstance(values, Texts):
            return cast("Strings", Texts(in_scratch(values.offsets), in_scratch(values.data)))
        return in_scratch(values)

    def opened(self, name: str, reader: Callable[[Path], Any]) -> Any:
        """Return what `reader` makes of the path of a verified file, which it may map."""
        with self.log.store.local(self.manifest.folder, self.manifest.file(name)) as path:
            return self.guarded(name, partial(reader, path))


def is_finite(matrix: npt.NDArray[np.float32]) -> bool:
    """Return whether all numbers (n, d) are finite, checking blocks of rows to save memory."""
    return all(np.isfinite(matrix[first : first + _BLOCK]).all() for first in range(0, len(matrix), _BLOCK))


def _pieces(file: pq.ParquetFile, name: str) -> Iterator[pa.Array]:
    """Yield a column of a file in batches; raises `ValueError` if the file has fewer rows than its metadata say."""
    left = file.metadata.num_rows
    for batch in file.iter_batches(_DECODED, columns=[name]):
        left -= len(batch)
        yield batch.column(0)
    if left:
        raise ValueError(f"lacks {left} of its rows")


def _numbers(file: pq.ParquetFile, name: str, into: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Fill an array (n,) with a column, and return it."""
    last = 0
    for piece in _pieces(file, name):
        into[last : last + len(piece)] = piece.to_numpy()
        last += len(piece)
    return into


def _array(data: bytes | mmap) -> npt.NDArray[Any]:
    """Return the array of a NumPy file as a view of its bytes: `np.load` would copy them, slowly."""
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, columns_first, kind = read_header(file)
    values = np.frombuffer(memoryview(data)[file.tell() :], kind)
    return values.reshape(shape, order="F" if columns_first else "C")
