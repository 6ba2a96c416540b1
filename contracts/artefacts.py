"""What windows and bundles share: Parquet files that a commit or a manifest describes."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

from contracts.errors import CorruptArtefactError
from contracts.storage import FileEntry, Store

__all__ = ["MANIFEST", "read_column", "read_table", "write_table"]

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
    if table.num_rows != entry.rows:
        problem = f"has {table.num_rows} rows, the manifest says {entry.rows}"
        raise CorruptArtefactError(store.path(f"{folder}/{entry.name}"), problem)
    return table
