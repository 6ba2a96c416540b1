"""Read Parquet files as blocks of rows of bounded size; the size of a row is unknown before it is decoded."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weir.readers.blocks import Block, BlockId, Chunk, Fault, Int64, Reason, TableRows, cuts
from weir.readers.config import LogConfig
from weir.readers.lines import MAX_LINE_BYTES
from weir.readers.sources import LogFile, printable

__all__ = ["FEW_ROWS", "columns_of", "read_parquet", "row_group_starts", "row_sizes"]


FEW_ROWS: Final = 1 << 12
"""Limit on the rows of consecutive row groups that are read as one chunk, and as one block."""
_MAX_FOOTER: Final = 64 << 20
"""Limit on the bytes of a footer, which is decoded as a whole and takes several times its size."""
_LISTS: Final = 1 << 10
"""Rows of lists to decode at a time: the lengths of the lists are unknown before."""


class _DamagedError(Exception):
    """The metadata of the file contradicts itself."""


def columns_of(config: LogConfig) -> dict[str, bool]:
    """Return name -> whether the column may hold lists, for the columns that the settings name."""
    names = [*config.columns.model_dump().values(), *config.features.all]
    return {name: name in config.features.categorical for name in names}


def row_group_starts(file: LogFile) -> list[int]:
    """Return the number of the first row of each row group, and at last the number of all rows.

    Raises an `Exception` of any type for a file that is not Parquet.
    """
    starts = [0]
    _check_footer(file)
    metadata = pq.read_metadata(file)
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if rows < 0:
            raise _DamagedError(f"row group {group} is said to hold {rows} rows")
        starts.append(starts[-1] + rows)
    return starts


def _check_footer(file: LogFile) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 8))
    footer = int.from_bytes(file.read(4), "little")
    if _MAX_FOOTER < footer <= size:
        allowed = f"at most {_MAX_FOOTER} are allowed: write larger row groups, or fewer columns"
        raise _DamagedError(f"its footer has {footer} bytes, {allowed}")
    file.seek(0)


def read_parquet(file: LogFile, chunk: Chunk, rows: int, size: int, columns: Mapping[str, bool]) -> Iterator[Block]:
    """Yield blocks of at most `rows` rows and `size` bytes; the rest of a damaged row group becomes a fault.

    `columns` maps each wanted column to whether it may hold lists (`columns_of`). If it may not, a column of lists or
    structs is refused by its type, undecoded.
    """
    key, held = chunk.partition.key, list[TableRows]()
    for piece in _pieces(file, chunk, rows, size, columns):
        if isinstance(piece, TableRows):
            held.append(piece)
            # Small row groups share a block.
            if chunk.stop - chunk.start <= min(rows, FEW_ROWS) and sum(one.nbytes for one in held) < size:
                continue
        if held:
            yield from _blocks(key, _joined(held), size)
            held = []
        if isinstance(piece, Block):
            yield piece
    if held:
        yield from _blocks(key, _joined(held), size)


def row_sizes(
    file: LogFile, chunk: Chunk, rows: int, size: int, columns: Mapping[str, bool]
) -> Iterator[tuple[Int64, Int64]]:
    """Yield the positions (n,) of the rows that `read_parquet` reads, and the decoded bytes (n,) of each."""
    for piece in _pieces(file, chunk, rows, size, columns):
        if isinstance(piece, TableRows):
            yield piece.positions, _sizes(piece.table)


def _pieces(
    file: LogFile, chunk: Chunk, rows: int, size: int, columns: Mapping[str, bool]
) -> Iterator[TableRows | Block]:
    """Yield the rows of a chunk as they are decoded, and a fault in place of the rest of a damaged row group."""
    at, group, log = chunk.start, chunk.row_group, None
    while at < chunk.stop:
        stop = chunk.stop
        try:
            log = log or _Table(file, columns)
            stop = min(stop, at + log.rows_of(group))
            for table in log.batches(group, rows, size) if stop > max(at, chunk.skip) else ():
                fresh = max(0, min(chunk.skip - at, table.num_rows))
                at += fresh
                if found := len(kept := table.slice(fresh, stop - at)):
                    yield TableRows(kept, np.arange(at, at + found), log.others)
                at += found
                if at == stop:
                    break
            if at != stop and stop > chunk.skip:
                raise _DamagedError(f"it is said to end at row {stop}, but ends at row {at}")
        except Exception as error:
            if file.failure is not None:
                raise
            at = max(at, min(chunk.skip, stop - 1))
            text = f"{printable(chunk.partition.key)}: row group {group} is damaged, rows {at} to {stop} are refused"
            fault = Fault(Reason.UNREADABLE_FILE, f"{text}: {type(error).__name__}: {error}")
            yield Block(BlockId(chunk.partition.key, at), None, ((at, fault, b""),), stop)
        at, group = stop, group + 1


class _Table:
    """An open Parquet file that yields the wanted columns; `others` names the other columns."""

    def __init__(self, file: LogFile, columns: Mapping[str, bool]) -> None:
        # Not `RowGroupMetaData.column`, which gives sizes by column: on a damaged footer it crashes the process.
        self._metadata = metadata = pq.read_metadata(file)
        leaves = [metadata.schema.column(leaf) for leaf in range(len(metadata.schema))]
        wanted = [leaf for leaf in leaves if _is_of(leaf.path, columns)]
        self._width = sum(leaf.length for leaf in wanted if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY")
        # In a dictionary, a text that many rows repeat is in memory once, as in the file.
        texts = [leaf.path for leaf in wanted if _is_text(leaf)]
        file.seek(0)
        options = {"page_checksum_verification": True, "arrow_extensions_enabled": True}
        self._file = pq.ParquetFile(file, metadata=metadata, read_dictionary=texts, **options)
        schema = self._file.schema_arrow
        self.others = tuple(name for name in schema.names if name not in columns)
        self._present = [name for name in columns if name in schema.names]
        # A repeated name gets the type of its first column; all of its rows are refused anyway.
        kinds = {name: schema.field(schema.names.index(name)).type for name in self._present}
        self._nested = {name: kind for name, kind in kinds.items() if pa.types.is_nested(kind)}
        self._undecoded = {name: _without_values(self._nested[name]) for name in self._nested if not columns[name]}

    def rows_of(self, group: int) -> int:
        """Return the number of rows of a row group."""
        return int(self._metadata.row_group(group).num_rows)

    def batches(self, group: int, rows: int, size: int) -> Iterator[pa.Table]:
        """Yield the rows of a row group in tables of at most `rows` rows and about `size` bytes, as stored."""
        found = self._metadata.row_group(group)
        decoded = [name for name in self._present if name not in self._undecoded]
        step = min(rows, max(1, size // max(1, self._width, -(-found.total_byte_size // max(1, found.num_rows)))))
        if any(name in self._nested for name in decoded):
            step = min(step, _LISTS)
        for batch in self._file.iter_batches(step, row_groups=[group], columns=decoded):
            table = pa.Table.from_batches([batch])
            for name, kind in self._undecoded.items():
                table = table.append_column(name, pa.nulls(len(table), kind))
            yield table


def _without_values(kind: pa.DataType) -> pa.DataType:
    """Return a stand-in for a nested type, for columns of nulls only: it takes no memory per row."""
    if pa.types.is_struct(kind) or pa.types.is_fixed_size_list(kind):
        return pa.struct([]) if pa.types.is_struct(kind) else pa.list_(kind.value_type)
    return kind


def _joined(found: Sequence[TableRows]) -> TableRows:
    if len(found) == 1:
        return found[0]
    tables = pa.concat_tables([one.table for one in found])
    return TableRows(tables, np.concatenate([one.positions for one in found]), found[0].others)


def _is_text(leaf: pq.ColumnSchema) -> bool:
    # Some writers store decimals as bytes.
    return bool(leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type != "DECIMAL")


def _is_of(path: str, columns: Iterable[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in columns)


def _sizes(table: pa.Table) -> Int64:
    """Return the bytes (n,) of each row with dictionaries decoded."""
    return sum((_bytes_of(column.combine_chunks()) for column in table.columns), np.zeros(len(table), np.int64))


def _blocks(key: str, found: TableRows, size: int) -> Iterator[Block]:
    sizes = _sizes(found.table)
    is_large = sizes > MAX_LINE_BYTES
    # A size beyond any limit, so that the row becomes a block of its own.
    for first, stop in cuts(np.where(is_large, max(size, MAX_LINE_BYTES) + 1, sizes), size, len(sizes)):
        rows = found.piece(first, stop)
        place, end = int(rows.positions[0]), int(rows.positions[-1]) + 1
        if is_large[first]:
            detail = f"a row may have {MAX_LINE_BYTES} bytes, this one has {sizes[first]}"
            letter = (place, Fault(Reason.LINE_TOO_LONG, detail), b"")
            yield Block(BlockId(key, place), None, (letter,), end)
        else:
            yield Block(BlockId(key, place), rows, (), end)


def _bytes_of(values: pa.Array) -> Int64:
    """Return the bytes (n,) of each of n values with dictionaries decoded."""
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
