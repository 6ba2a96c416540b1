"""What windows and bundles share: Parquet files that a commit or a manifest describes."""

import io
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from contracts.errors import CorruptArtefactError
from contracts.storage import FileEntry, Store

__all__ = ["MANIFEST", "read_batches", "read_column", "read_table", "write_table"]

_ROWS: Final = 1 << 15

MANIFEST = "MANIFEST.json"
"""Written last: without it the directory does not exist for any reader."""


def write_table(store: Store, name: str, table: pa.Table) -> FileEntry:
    """Write `table` as Parquet (zstd).

    No dictionary: fixed-size lists of keys do not gain from it. No statistics: files are read whole.
    """
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", use_dictionary=False, write_statistics=False)
    return store.write(name, buffer.getvalue(), rows=table.num_rows)


def read_column(store: Store, folder: str, entry: FileEntry, column: str) -> pa.ChunkedArray:
    """Return one column of a Parquet file, reading little else: its checksum is not verified.

    Raises `CorruptArtefactError` for a file that is missing, or no Parquet file of as many rows.
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


def read_batches(store: Store, folder: str, entry: FileEntry, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield a verified Parquet file in order, some rows at a time; raises `CorruptArtefactError`.

    In memory is the file as it is stored, and what one batch holds.
    """
    file = pq.ParquetFile(pa.BufferReader(store.read_verified(folder, entry)))
    _check_rows(file.metadata.num_rows, store, folder, entry)
    yield from file.iter_batches(_ROWS, columns=columns)


def _check_rows(found: int, store: Store, folder: str, entry: FileEntry) -> None:
    if found != entry.rows:
        problem = f"has {found} rows, the manifest says {entry.rows}"
        raise CorruptArtefactError(store.path(f"{folder}/{entry.name}"), problem)
