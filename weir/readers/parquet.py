"""Parquet files to blocks of rows; how large a row is shows only when it has been read."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weir.readers.blocks import Block, BlockId, Chunk, Fault, Int64, Reason, TableRows, cuts
from weir.readers.lines import MAX_LINE_BYTES
from weir.readers.sources import LogFile, printable

__all__ = ["read_parquet", "row_group_starts"]


class _DamagedError(Exception):
    """The metadata of the file contradicts itself."""


def row_group_starts(file: LogFile) -> list[int]:
    """Return the number of the first row of each row group, and of the row after the last.

    Raises an `Exception` of any type for a file that is no Parquet.
    """
    starts = [0]
    metadata = pq.read_metadata(file)
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if rows < 0:
            raise _DamagedError(f"row group {group} is said to hold {rows} rows")
        starts.append(starts[-1] + rows)
    return starts


def read_parquet(file: LogFile, chunk: Chunk, rows: int, size: int, columns: Sequence[str]) -> Iterator[Block]:
    """Yield blocks of at most `rows` rows and `size` bytes of one row group; a damaged one ends in a fault."""
    key, at = chunk.partition.key, chunk.start
    try:
        for batch, others in _batches(file, chunk.row_group, rows, size, columns):
            fresh = max(0, min(chunk.skip - at, batch.num_rows))
            at += fresh
            for block in _blocks(key, at, pa.Table.from_batches([batch.slice(fresh, chunk.stop - at)]), others, size):
                yield block
                at = block.stop
        if at != chunk.stop:
            raise _DamagedError(f"it is said to end at row {chunk.stop}, but ends at row {at}")
    except Exception as error:
        if file.failure is not None:
            raise
        at = max(at, min(chunk.skip, chunk.stop - 1))
        text = f"{printable(key)}: row group {chunk.row_group} is damaged, rows {at} to {chunk.stop} are refused"
        fault = Fault(Reason.UNREADABLE_FILE, f"{text}: {type(error).__name__}: {error}")
        yield Block(BlockId(key, at), None, ((at, fault, b""),), chunk.stop)


def _batches(
    file: LogFile, group: int, rows: int, size: int, columns: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, tuple[str, ...]]]:
    """Yield batches of the columns that are wanted, each with the names of the others."""
    metadata = pq.read_metadata(file)
    # Not `RowGroupMetaData.column`, which gives sizes by column: on a damaged footer it crashes the process.
    found, leaves = metadata.row_group(group), [metadata.schema.column(leaf) for leaf in range(len(metadata.schema))]
    step = min(rows, max(1, size * found.num_rows // max(1, found.total_byte_size)))
    # As a dictionary, a text that many rows repeat takes its room once, here as in the file.
    texts = [leaf.path for leaf in leaves if _is_text(leaf) and _is_of(leaf.path, columns)]
    file.seek(0)
    options = {"page_checksum_verification": True, "arrow_extensions_enabled": True}
    parquet = pq.ParquetFile(file, metadata=metadata, read_dictionary=texts, **options)
    names = parquet.schema_arrow.names
    present, others = [name for name in columns if name in names], tuple(name for name in names if name not in columns)
    for batch in parquet.iter_batches(step, row_groups=[group], columns=present):
        yield batch, others


def _is_text(leaf: pq.ColumnSchema) -> bool:
    # Some writers keep decimals in bytes.
    return bool(leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type != "DECIMAL")


def _is_of(path: str, columns: Sequence[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in columns)


def _blocks(key: str, start: int, table: pa.Table, others: tuple[str, ...], size: int) -> Iterator[Block]:
    sizes = sum((_bytes_of(column.combine_chunks()) for column in table.columns), np.zeros(len(table), np.int64))
    is_large = sizes > MAX_LINE_BYTES
    # Beyond any limit, so that it makes a block of its own.
    for first, stop in cuts(np.where(is_large, max(size, MAX_LINE_BYTES) + 1, sizes), size, len(table)):
        place, end = start + first, start + stop
        if is_large[first]:
            detail = f"a row may have {MAX_LINE_BYTES} bytes, this one has {sizes[first]}"
            letter = (place, Fault(Reason.LINE_TOO_LONG, detail), b"")
            yield Block(BlockId(key, place), None, (letter,), end)
        else:
            rows = TableRows(table.slice(first, stop - first), np.arange(place, end), others)
            yield Block(BlockId(key, place), rows, (), end)


def _bytes_of(values: pa.Array) -> Int64:
    """Return the bytes (n,) that each of n values takes once dictionaries are spelled out."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        words = np.append(_bytes_of(values.dictionary), 0)
        sizes: Int64 = words[pc.fill_null(values.indices, len(words) - 1).to_numpy(zero_copy_only=False)]
        return sizes
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        rows = np.repeat(np.arange(len(values)), lengths)
        weights = _bytes_of(values.flatten())
        return np.bincount(rows, weights, len(values)).astype(np.int64)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
        return np.asarray(lengths, np.int64)
    return np.full(len(values), -(-values.nbytes // max(1, len(values))), np.int64)
