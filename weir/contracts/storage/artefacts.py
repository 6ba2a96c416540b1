"""Parquet files of windows and bundles, as a commit or a manifest lists them."""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import IO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from weir.contracts.base.errors import CorruptArtefactError
from weir.contracts.storage.store import FileEntry, Store

__all__ = ["GROUP", "MANIFEST", "read_batches", "read_column", "read_table", "write_groups", "write_table"]

_ROWS: Final = 1 << 15
GROUP: Final = 1 << 18
"""Rows per row group: small, so that readers that share a file decode few rows of each other."""

MANIFEST = "MANIFEST.json"
"""Written last: a directory without it does not exist for readers."""


def write_table(store: Store, name: str, table: pa.Table) -> FileEntry:
    """Write `table` as Parquet (zstd).

    No dictionary: fixed-size lists of keys do not gain from it. No statistics: readers do not filter by value.
    """
    return write_groups(store, name, table.schema, [table], table.num_rows)


def write_groups(store: Store, name: str, schema: pa.Schema, groups: Iterable[pa.Table], rows: int) -> FileEntry:
    """Write a Parquet file of `rows` rows as `write_table` does, one `GROUP` after another; memory holds one group."""

    def fill(file: IO[bytes]) -> None:
        with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False, write_statistics=False) as writer:
            for group in groups:
                writer.write_table(group, GROUP)

    return store.write_with(name, fill, rows=rows)


def read_column(store: Store, folder: str, entry: FileEntry, column: str) -> pa.ChunkedArray:
    """Return one column of a Parquet file without verifying its checksum, so that little else is read.

    Raises `CorruptArtefactError` if the file is missing, is not Parquet, or has another number of rows than `entry`.
    """
    name = f"{folder}/{entry.name}"
    try:
        with store.open(name) as file:
            found = pq.ParquetFile(file).read([column])[column]
    except FileNotFoundError:
        raise CorruptArtefactError(store.path(name), "the manifest lists it, but it is missing") from None
    except (pa.ArrowException, KeyError, OSError) as error:
        raise CorruptArtefactError(store.path(name), f"cannot be read: {error}") from error
    if len(found) != entry.rows:
        raise CorruptArtefactError(store.path(name), f"has {len(found)} rows, the manifest says {entry.rows}")
    return found


def read_table(store: Store, folder: str, entry: FileEntry, columns: list[str] | None = None) -> pa.Table:
    """Return a verified Parquet file as a table; raises `CorruptArtefactError`."""
    table = pq.read_table(pa.BufferReader(store.read_verified(folder, entry)), columns=columns)
    _check_rows(table.num_rows, store, folder, entry)
    return table


def read_batches(
    store: Store, folder: str, entry: FileEntry, columns: list[str], rows: range | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield consecutive `rows` (None: all) of a verified Parquet file in order, in batches.

    Memory holds the stored file and one decoded batch. Row groups without any of the rows are not decoded. Raises
    `CorruptArtefactError` if the file does not match its entry.
    """
    file = pq.ParquetFile(pa.BufferReader(store.read_verified(folder, entry)))
    _check_rows(file.metadata.num_rows, store, folder, entry)
    wanted = range(entry.rows) if rows is None else rows
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
    ends = list(accumulate(sizes))
    groups = [n for n, end in enumerate(ends) if end > wanted.start and end - sizes[n] < wanted.stop]
    at = ends[groups[0]] - sizes[groups[0]] if groups else 0
    for batch in file.iter_batches(_ROWS, groups, columns):
        low, high = max(wanted.start - at, 0), min(wanted.stop - at, len(batch))
        if low < high:
            yield batch.slice(low, high - low)
        at += len(batch)


def _check_rows(found: int, store: Store, folder: str, entry: FileEntry) -> None:
    if found != entry.rows:
        problem = f"has {found} rows, the manifest says {entry.rows}"
        raise CorruptArtefactError(store.path(f"{folder}/{entry.name}"), problem)
