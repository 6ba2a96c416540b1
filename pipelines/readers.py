"""Files to blocks of raw rows, always cut at the same places.

JSON Lines are cut at multiples of `chunk_bytes` and a line belongs to the piece in which it starts; gzip is cut
every `chunk_rows` lines, Parquet every `chunk_rows` rows of a row group.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.blocks import Block, BlockId, Lines, Rows
from pipelines.faults import Fault, Reason
from pipelines.sources import Partition

__all__ = ["MAX_LINE_BYTES", "Chunk", "end_of_lines", "read_gzip_lines", "read_json_lines", "read_parquet"]

MAX_LINE_BYTES: Final = 8 << 20
"""A longer line is refused without being held in memory whole."""

_STEP: Final = 1 << 16


@dataclass(frozen=True)
class Chunk:
    """A piece of work: positions [start, stop) of a partition; nothing is read beyond byte `limit`.

    Rows below `skip` are not wanted; Parquet is read by `row_group`.
    """

    partition: Partition
    start: int
    stop: int
    limit: int
    skip: int = 0
    row_group: int = 0


def end_of_lines(file: Any, size: int) -> int:
    """Return the position after the last newline within the first `size` bytes; 0 without any."""
    stop = size
    while stop > 0:
        start = max(0, stop - _STEP)
        file.seek(start)
        if (found := file.read(stop - start).rfind(b"\n")) >= 0:
            return int(start + found + 1)
        stop = start
    return 0


def read_json_lines(file: Any, chunk: Chunk) -> Iterator[Block]:
    """Yield the one block of lines that start within the chunk."""
    begin = max(0, chunk.start - 1)
    file.seek(begin)
    data = file.read(min(chunk.stop, chunk.limit) - begin)
    first = data.find(b"\n") + 1 if chunk.start else 0
    if chunk.start and (not first or first == len(data)):
        lines: list[bytes] = []
    else:
        lines = _split(data[first:] + _rest_of_line(file, data, chunk.limit))
    starts = np.fromiter(accumulate(map(len, lines[:-1]), lambda at, size: at + size + 1, initial=begin + first), int)
    yield Block(BlockId(chunk.partition.key, chunk.start), Lines(lines, starts[: len(lines)]))


def _rest_of_line(file: Any, data: bytes, limit: int) -> bytes:
    """Return what is missing of the last line, up to `limit` and up to a byte more than a line may have."""
    rest = b""
    while not (data + rest[-1:]).endswith(b"\n") and file.tell() < limit and len(rest) <= MAX_LINE_BYTES:
        more = file.read(min(_STEP, limit - file.tell()))
        if not more:
            break
        newline = more.find(b"\n")
        rest += more if newline < 0 else more[: newline + 1]
        if newline >= 0:
            break
    return rest


def _split(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


class _DamagedError(Exception):
    """The rest of a gzip file cannot be read."""


def read_gzip_lines(file: Any, chunk: Chunk, rows: int) -> Iterator[Block]:
    """Yield blocks of `rows` lines; where the file is damaged the last one says so."""
    key, start, pending = chunk.partition.key, 0, list[bytes]()
    faults: tuple[tuple[int, Fault, bytes], ...] = ()
    try:
        for lines in _inflated(file):
            pending += lines
            while len(pending) >= rows:
                if start + rows > chunk.skip:
                    yield _lines_block(key, start, pending[:rows])
                del pending[:rows]
                start += rows
    except _DamagedError as error:
        fault = Fault(Reason.TRUNCATED_GZIP, f"{key}: {error}; the lines before it are kept")
        faults = ((start + len(pending), fault, b""),)
    if faults or (pending and start >= chunk.skip):
        yield _lines_block(key, start, pending, faults)


def _lines_block(key: str, start: int, lines: list[bytes], faults: tuple[tuple[int, Fault, bytes], ...] = ()) -> Block:
    stop = start + len(lines)
    return Block(BlockId(key, start), Lines(lines, np.arange(start, stop)), faults, stop)


def _inflated(file: Any) -> Iterator[list[bytes]]:
    """Yield whole lines; raises `_DamagedError` after those that could be read."""
    rest = b""
    with gzip.GzipFile(fileobj=file) as stream:
        while True:
            try:
                piece = stream.read1(1 << 20)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise _DamagedError(str(error)) from error
            if not piece:
                break
            *lines, rest = (rest + piece).split(b"\n")
            # What is beyond the limit is not needed to see that the line is too long.
            rest = rest[: MAX_LINE_BYTES + 1]
            yield lines
    if rest:
        yield [rest]


def read_parquet(file: Any, chunk: Chunk, rows: int, columns: list[str]) -> Iterator[Block]:
    """Yield blocks of up to `rows` rows of one row group; a damaged one ends in a fault."""
    start = chunk.start
    key = chunk.partition.key
    try:
        parquet = pq.ParquetFile(file)
        present = [name for name in columns if name in parquet.schema_arrow.names]
        for batch in parquet.iter_batches(rows, row_groups=[chunk.row_group], columns=present):
            stop = start + batch.num_rows
            if stop > chunk.skip:
                yield Block(BlockId(key, start), Rows(pa.Table.from_batches([batch]), np.arange(start, stop)))
            start = stop
    except (pa.ArrowException, OSError) as error:
        # Arrow's own errors carry no number; one that does comes from the file system and may pass.
        if getattr(error, "errno", None) is not None:
            raise
        fault = Fault(Reason.UNREADABLE_FILE, f"{key}: row group {chunk.row_group} is damaged: {error}")
        yield Block(BlockId(key, start), None, ((start, fault, b""),))
