"""Lines of text files to blocks, from the row at which reading starts, each block bounded in rows and in bytes.

Plain files are cut at multiples of `chunk_bytes` and a line belongs to the piece in which it starts. What a file holds
never raises: damage is a fault of the block in which it is met. Errors of the file system are raised.
"""

import gzip
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

import numpy as np

from weir.readers.blocks import Block, BlockId, Chunk, Lines, cuts
from weir.readers.faults import Fault, Reason
from weir.readers.log_file import LogFile
from weir.readers.sources import printable

__all__ = ["MAX_LINE_BYTES", "end_of_lines", "read_gzip_lines", "read_lines"]

MAX_LINE_BYTES: Final = 8 << 20
"""A longer line, or row of a Parquet file, is refused without being held in memory whole."""

_STEP: Final = 1 << 16
_INFLATED_STEP: Final = 1 << 20


def end_of_lines(file: LogFile, size: int, start: int = 0) -> int:
    """Return the position after the last newline within bytes [start, size); `start` without any."""
    stop = size
    while stop > start:
        place = max(start, stop - _STEP)
        file.seek(place)
        if (found := file.read(stop - place).rfind(b"\n")) >= 0:
            return place + found + 1
        stop = place
    return start


def read_lines(file: LogFile, chunk: Chunk) -> Iterator[Block]:
    """Yield the one block of lines that start within the chunk."""
    is_first = chunk.start == chunk.skip
    begin = chunk.start if is_first else chunk.start - 1
    file.seek(begin)
    data = file.read(min(chunk.stop, chunk.limit) - begin)
    first = 0 if is_first else data.find(b"\n") + 1
    if not is_first and (not first or first == len(data)):
        lines: list[bytes] = []
    else:
        lines = _split(data[first:] + _rest_of_line(file, data, chunk.limit))
    starts = np.fromiter(accumulate(map(len, lines[:-1]), lambda at, size: at + size + 1, initial=begin + first), int)
    start = begin + first if lines else chunk.start
    yield Block(BlockId(chunk.partition.key, start), Lines(lines, starts[: len(lines)]))


def _rest_of_line(file: LogFile, data: bytes, limit: int) -> bytes:
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


def read_gzip_lines(file: LogFile, chunk: Chunk, rows: int, size: int) -> Iterator[Block]:
    """Yield blocks of at most `rows` lines and `size` bytes; where the file is damaged the last one says so."""
    key, seen, pending, held = chunk.partition.key, 0, list[bytes](), 0
    faults: tuple[tuple[int, Fault, bytes], ...] = ()
    try:
        for lines in _inflated(file):
            fresh = lines[max(0, chunk.start - seen) :]
            seen += len(lines)
            pending += fresh
            held += sum(map(len, fresh))
            if len(pending) >= rows or held >= size:
                *full, (last, _) = cuts(np.fromiter(map(len, pending), int), size, rows)
                for start, stop in full:
                    yield _lines_block(key, seen - len(pending) + start, pending[start:stop])
                pending = pending[last:]
                held = sum(map(len, pending))
    except _DamagedError as error:
        fault = Fault(Reason.TRUNCATED_GZIP, f"{printable(key)}: {error}; the lines before it are kept")
        seen = max(seen, chunk.start)
        faults = ((seen, fault, b""),)
    if faults or pending:
        yield _lines_block(key, seen - len(pending), pending, faults)


def _lines_block(key: str, start: int, lines: list[bytes], faults: tuple[tuple[int, Fault, bytes], ...] = ()) -> Block:
    stop = start + len(lines)
    return Block(BlockId(key, start), Lines(lines, np.arange(start, stop)), faults, stop)


def _inflated(file: LogFile) -> Iterator[list[bytes]]:
    """Yield whole lines; raises `_DamagedError` after those that could be read."""
    rest = bytearray()
    with gzip.GzipFile(fileobj=file) as stream:
        while piece := _inflate(stream, file):
            first, *lines = piece.split(b"\n")
            # What is beyond the limit is not needed to see that the line is too long.
            rest += first[: max(0, MAX_LINE_BYTES + 1 - len(rest))]
            if lines:
                yield [bytes(rest), *lines[:-1]]
                rest = bytearray(lines[-1])
    if rest:
        yield [bytes(rest)]


def _inflate(stream: gzip.GzipFile, file: LogFile) -> bytes:
    try:
        return stream.read1(_INFLATED_STEP)
    except Exception as error:
        if file.failure is not None:
            raise
        raise _DamagedError(f"{type(error).__name__}: {error}") from error
