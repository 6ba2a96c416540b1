"""The cost in memory of rows to read, measured without parsing them: limits how much one run reads.

Neither the size of a file nor its footer shows this cost: a line may have two bytes, and a page of a few bytes may
decode to gigabytes. So the ends of the rows are found before a run reads the rows.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from weir.readers.blocks import Chunk, Int64, Reading
from weir.readers.config import LogConfig
from weir.readers.delimited import header_of
from weir.readers.lines import MAX_LINE_BYTES, RowEnds, inflated
from weir.readers.parquet import columns_of, row_group_starts, row_sizes
from weir.readers.row_ends import QuoteTracker
from weir.readers.sources import Format, LogFile, Partition

__all__ = ["PIECE_COST", "Extent", "cost_of", "extents", "most_cost"]

_ROW_COST: Final = 256
_BYTE_COST: Final = 3
"""Cost of a row, and of each of its bytes. A run takes 2.9 times its cost in memory (docs/pipeline.md#memory): 740
bytes a row, mostly for its history, and 8.7 times its bytes."""
PIECE_COST: Final = 1 << 14
"""Cost of a file or row group besides its rows."""
_PIECE: Final = 1 << 20
_BATCH_ROWS: Final = 1 << 16
_BATCH_BYTES: Final = 8 << 20


def cost_of(rows: int, size: int) -> int:
    """Return the memory cost of `rows` rows with `size` bytes in all, in bytes of `run_bytes`."""
    return _ROW_COST * rows + _BYTE_COST * size


class Extent(NamedTuple):
    """Consecutive rows: the position `behind` (after) each row (n,), and the `costs` (n,), in bytes of `run_bytes`."""

    behind: Int64
    costs: Int64


def most_cost(partition: Partition, start: int) -> float:
    """Return the largest possible cost of the rows of a file from position `start` on, going by its size."""
    if partition.format not in (Format.JSON_LINES, Format.DELIMITED):
        return float("inf") if partition.size else 0.0
    return PIECE_COST + max(0, partition.size - start) * float(_ROW_COST + _BYTE_COST)


def extents(reading: Reading, config: LogConfig) -> Iterator[Extent]:
    """Yield the costs of the rows of a file from the start of a reading on, without an unfinished last row.

    Ends where the file is damaged, since the rows after that are not read. Errors of the file system are raised.
    """
    with reading.partition.open() as file:
        try:
            for behind, sizes in _rows(file, reading, config):
                fresh = int(np.searchsorted(behind, reading.start, side="right"))
                yield Extent(behind[fresh:], _ROW_COST + _BYTE_COST * np.minimum(sizes[fresh:], MAX_LINE_BYTES))
        except Exception:
            # Faulty content becomes a fault when it is read.
            if file.failure is not None:
                raise


def _rows(file: LogFile, reading: Reading, config: LogConfig) -> Iterator[tuple[Int64, Int64]]:
    """Yield the positions after rows (n,), and their bytes (n,)."""
    partition, start = reading.partition, reading.start
    if partition.format is Format.PARQUET:
        yield from _rows_of_groups(file, reading, config)
        return
    is_gzip = partition.format in (Format.GZIP_LINES, Format.GZIP_DELIMITED)
    header = None
    if partition.format in (Format.DELIMITED, Format.GZIP_DELIMITED):
        header = header_of(file, partition)
    quotes = QuoteTracker(header.delimiter) if header else None
    ends = RowEnds(quotes, counts_lines=True) if is_gzip else RowEnds(quotes, start)
    pieces = inflated(file, checked=False) if is_gzip else _pieces(file, start, partition.size)
    yield from map(ends.take, pieces)


def _pieces(file: LogFile, start: int, stop: int) -> Iterator[bytes]:
    file.seek(start)
    while start < stop and (piece := file.read(min(_PIECE, stop - start))):
        yield piece
        start += len(piece)


def _rows_of_groups(file: LogFile, reading: Reading, config: LogConfig) -> Iterator[tuple[Int64, Int64]]:
    edges = row_group_starts(file)
    chunk = Chunk(reading.partition, 0, edges[-1], reading.partition.size, reading.start)
    for positions, sizes in row_sizes(file, chunk, _BATCH_ROWS, _BATCH_BYTES, columns_of(config)):
        costs = sizes.copy()
        costs[np.isin(positions, edges)] += PIECE_COST // _BYTE_COST
        yield positions + 1, costs
