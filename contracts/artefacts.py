"""What windows and bundles share: a directory of Parquet and other files that its manifest describes."""

import io
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ValidationError

from contracts.errors import CorruptArtefactError, in_one_line
from contracts.storage import FileEntry, Store

__all__ = ["MANIFEST", "read_manifest", "read_table", "write_manifest", "write_table"]

MANIFEST = "MANIFEST.json"
"""Written last: without it the directory does not exist for any reader."""

ManifestT = TypeVar("ManifestT", bound=BaseModel)


def write_table(store: Store, name: str, table: pa.Table) -> FileEntry:
    """Write `table` as Parquet (zstd; no dictionary, which fixed-size lists of keys do not gain from)."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", use_dictionary=False)
    return store.write(name, buffer.getvalue(), rows=table.num_rows)


def read_table(store: Store, folder: str, entry: FileEntry, columns: list[str] | None = None) -> pa.Table:
    """Return a verified Parquet file as a table; raises `CorruptArtefactError`."""
    table = pq.read_table(pa.BufferReader(store.read_verified(folder, entry)), columns=columns)
    if table.num_rows != entry.rows:
        problem = f"has {table.num_rows} rows, the manifest says {entry.rows}"
        raise CorruptArtefactError(store.path(f"{folder}/{entry.name}"), problem)
    return table


def write_manifest(store: Store, folder: str, manifest: BaseModel) -> None:
    """Commit a directory."""
    store.write(f"{folder}/{MANIFEST}", manifest.model_dump_json(indent=2).encode())


def read_manifest(store: Store, folder: str, model: type[ManifestT]) -> ManifestT:
    """Return a directory's validated manifest; raises `CorruptArtefactError` or `FileNotFoundError`."""
    name = f"{folder}/{MANIFEST}"
    try:
        return model.model_validate_json(store.read(name))
    except ValidationError as error:
        raise CorruptArtefactError(store.path(name), f"is not a valid manifest: {in_one_line(error)}") from error
