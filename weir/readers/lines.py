"""Blocks from lines and rows of text files, bounded in rows and bytes.

JSON Lines are cut at multiples of `chunk_bytes`, and a line belongs to the piece in which it starts; chunks of CSV and
TSV start at a row (`weir.readers.reading`). Damaged content never raises: it becomes a fault of its block. Errors of
the file system are raised.
"""

import gzip
import zlib
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv

from weir.readers.blocks import Block, BlockId, Chunk, Fault, Int64, Lines, Reason, TableRows, cuts
from weir.readers.config import LogColumns
from weir.readers.row_ends import QuoteTracker
from weir.readers.sources import LogFile, has_ending, printable

__all__ = [
    "MAX_LINE_BYTES",
    "RowCutter",
    "RowEnds",
    "end_of_lines",
    "inflated",
    "read_gzip_lines",
    "read_lines",
    "read_pairs",
    "read_rows",
]


MAX_LINE_BYTES: Final = 8 << 20
"""Limit on a line, or a row of any format; a longer one is refused without holding all of it in memory."""

_SHORT: Final = 4
"""A chunk of text is one block, unless it has more rows than `_SHORT` blocks may: then most are too short to be
valid."""
_STEP: Final = 1 << 16
_PIECE: Final = 1 << 20
_HELD: Final = 8 << 20
"""Largest content of a gzip member that is held until its checksum is verified; a larger one is inflated twice."""


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


def read_lines(file: LogFile, chunk: Chunk, rows: int) -> Iterator[Block]:
    """Yield the lines that start within a chunk: one block, or blocks of `_SHORT * rows` lines if there are more."""
    is_first = chunk.start == chunk.skip
    begin = chunk.start if is_first else chunk.start - 1
    file.seek(begin)
    data = file.read(min(chunk.stop, chunk.limit) - begin)
    first = 0 if is_first else data.find(b"\n") + 1
    if not is_first and (not first or first == len(data)):
        yield Block(BlockId(chunk.partition.key, chunk.start), Lines([], np.empty(0, np.int64)))
        return
    at = begin + first
    for piece in _pieces_of(data[first:] + _rest_of_line(file, data, chunk.limit), _SHORT * rows):
        lines = _split(piece)
        starts = np.fromiter(accumulate(map(len, lines[:-1]), lambda at, size: at + size + 1, initial=at), np.int64)
        yield Block(BlockId(chunk.partition.key, at if lines else chunk.start), Lines(lines, starts[: len(lines)]))
        at += len(piece)


def _pieces_of(data: bytes, lines: int) -> Iterator[bytes]:
    """Yield pieces of a text with `lines` lines each; the last piece may have fewer."""
    if data.count(b"\n") < lines:
        yield data
        return
    breaks = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    edges = [0, *(breaks[lines - 1 :: lines] + 1).tolist()]
    yield from (data[start:stop] for start, stop in pairwise([*edges, len(data)]) if start < stop)


def _rest_of_line(file: LogFile, data: bytes, limit: int) -> bytes:
    """Return the rest of the last line, up to `limit`, and not much beyond the longest allowed line."""
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


class _Breaks:
    """Follows the ends of rows in a text that comes in pieces: line breaks, or line breaks outside `quotes`.

    Positions count bytes from `start`, or line breaks if `counts_lines`.
    """

    def __init__(self, quotes: QuoteTracker | None = None, start: int = 0, *, counts_lines: bool = False) -> None:
        self._quotes = quotes
        self._counts_lines = counts_lines
        self._read = start

    def _ends(self, piece: bytes) -> tuple[Int64, Int64, Int64]:
        """Add a piece; return the places of its line breaks, of its row ends (n,), and the positions after these."""
        if self._quotes is None:
            breaks = ends = np.flatnonzero(np.frombuffer(piece, np.uint8) == ord("\n"))
        else:
            breaks, outside = self._quotes.breaks(piece)
            ends = breaks if outside.all() else breaks[outside]
        behind = self._read + 1 + (np.searchsorted(breaks, ends) if self._counts_lines else ends)
        self._read += len(breaks) if self._counts_lines else len(piece)
        return breaks, ends, behind


class RowEnds(_Breaks):
    """Finds the ends of rows, and the bytes of each row."""

    _open = 0

    def take(self, piece: bytes) -> tuple[Int64, Int64]:
        """Add a piece; return the positions after the rows that end in it (n,), and their bytes (n,)."""
        _, ends, behind = self._ends(piece)
        sizes = np.diff(ends, prepend=-1 - self._open)
        self._open = len(piece) - 1 - int(ends[-1]) if len(ends) else self._open + len(piece)
        return behind, sizes


class RowCutter(_Breaks):
    """Cuts a text into rows at the ends of rows."""

    def __init__(self, quotes: QuoteTracker | None = None, start: int = 0, *, counts_lines: bool = False) -> None:
        super().__init__(quotes, start, counts_lines=counts_lines)
        self.position = start
        self._rest = bytearray()

    def cut(self, piece: bytes) -> tuple[list[bytes], Int64]:
        """Add a piece; return the rows that end in it, without line breaks, and their positions.

        Of a row beyond the limit only enough is kept to show that it is too long.
        """
        breaks, ends, behind = self._ends(piece)
        if not len(ends):
            self._hold(piece)
            return [], np.empty(0, np.int64)
        if len(ends) == len(breaks):
            first, *rows, last = piece.split(b"\n")
        else:
            places = [-1, *ends.tolist(), len(piece)]
            first, *rows, last = (piece[before + 1 : end] for before, end in pairwise(places))
        self._hold(first)
        found, positions = [bytes(self._rest), *rows], np.append(self.position, behind[:-1])
        self.position, self._rest = int(behind[-1]), bytearray()
        self._hold(last)
        return found, positions

    def end(self) -> tuple[list[bytes], Int64, int]:
        """End the text: return the rest after the last line break as a row, its position, and the position after it.

        The lists are empty without a rest.
        """
        if not self._rest:
            return [], np.empty(0, np.int64), self.position
        return [bytes(self._rest)], np.array([self.position]), self._read + self._counts_lines

    @property
    def held(self) -> int:
        """Bytes held of the unfinished row."""
        return len(self._rest)

    def _hold(self, piece: bytes) -> None:
        self._rest += piece[: max(0, MAX_LINE_BYTES + 1 - len(self._rest))]


def read_rows(file: LogFile, chunk: Chunk, quotes: QuoteTracker, rows: int) -> Iterator[Block]:
    """Yield the rows of a chunk that starts and stops at rows, as one block, or as several as `read_lines` does."""
    cutter, at, start = RowCutter(quotes, chunk.start), chunk.start, chunk.start
    lines, positions, most = list[bytes](), np.empty(0, np.int64), _SHORT * rows
    file.seek(at)
    while at < chunk.stop and (piece := file.read(min(_PIECE, chunk.stop - at))):
        found, starts = cutter.cut(piece)
        lines += found
        positions = np.append(positions, starts)
        at += len(piece)
        while len(lines) > most:
            yield Block(BlockId(chunk.partition.key, start), Lines(lines[:most], positions[:most]))
            start, lines, positions = int(positions[most]), lines[most:], positions[most:]
    last, starts, _ = cutter.end()
    yield Block(BlockId(chunk.partition.key, start), Lines(lines + last, np.append(positions, starts)))


class _DamagedError(Exception):
    """The rest of a gzip file cannot be read."""


def read_gzip_lines(
    file: LogFile, chunk: Chunk, rows: int, size: int, quotes: QuoteTracker | None = None, *, checked: bool = True
) -> Iterator[Block]:
    """Yield blocks of at most `rows` lines and `size` bytes; if the file is damaged, the last block has the fault.

    If `checked`, the content of a member is yielded only after its checksum was verified. With `quotes`, line breaks
    within quotes do not end a row, but positions are still line numbers.
    """
    key, pending, cutter = chunk.partition.key, _Pending(chunk), RowCutter(quotes, counts_lines=True)
    faults: tuple[tuple[int, Fault, bytes], ...] = ()
    try:
        for piece in inflated(file, checked=checked):
            pending.add(*cutter.cut(piece))
            if 0 < chunk.stop <= cutter.position:
                stop = chunk.stop
                break
            yield from pending.full(rows, size, cutter.position)
        else:
            last, positions, stop = cutter.end()
            pending.add(last, positions)
    except _DamagedError as error:
        stop = max(cutter.position, chunk.start)
        fault = Fault(
            Reason.TRUNCATED_GZIP, f"{printable(key)} is damaged, nothing is read behind line {stop}: {error}"
        )
        faults = ((stop, fault, b""),)
    yield from pending.full(rows, size, stop)
    if faults or pending.lines:
        yield pending.block(0, len(pending.lines), stop, faults)


class _Pending:
    """Rows of a gzip file that are not in a block yet."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self.lines = list[bytes]()
        self._sizes = self._positions = np.empty(0, np.int64)

    def add(self, lines: list[bytes], positions: Int64) -> None:
        """Add rows, leaving out rows before the start and after the stop of the chunk."""
        known = int(np.searchsorted(positions, self._chunk.start))
        stop = int(np.searchsorted(positions, self._chunk.stop)) if self._chunk.stop else len(lines)
        self.lines += lines[known:stop]
        self._positions = np.append(self._positions, positions[known:stop])
        self._sizes = np.append(self._sizes, np.fromiter(map(len, lines[known:stop]), np.int64))

    def full(self, rows: int, size: int, stop: int) -> Iterator[Block]:
        """Yield full blocks, and keep the remaining rows; `stop` is the position after all rows."""
        if len(self.lines) < rows and self._sizes.sum() < size:
            return
        *full, (last, _) = cuts(self._sizes, size, rows)
        for first, end in full:
            yield self.block(first, end, stop)
        self.lines, self._positions, self._sizes = self.lines[last:], self._positions[last:], self._sizes[last:]

    def block(self, first: int, end: int, stop: int, faults: tuple[tuple[int, Fault, bytes], ...] = ()) -> Block:
        """Return some of the rows as a block."""
        positions = self._positions[first:end]
        behind = int(self._positions[end]) if end < len(self._positions) else stop
        start = int(positions[0]) if len(positions) else stop
        return Block(BlockId(self._chunk.partition.key, start), Lines(self.lines[first:end], positions), faults, behind)


def inflated(file: LogFile, *, checked: bool) -> Iterator[bytes]:
    """Yield the content of a gzip file in pieces; raises an `Exception` after the readable part of a damaged one.

    If `checked`, the content of a member is yielded only after its checksum was verified.
    """
    start: int | None = 0
    while start is not None:
        member = _Member(file, start)
        yield from member.checked_pieces() if checked else member.pieces()
        start = _next_member(file, member.stop)


class _Member:
    """A member of a gzip file, from byte `start` to `stop`; `stop` is set once it has been read completely."""

    def __init__(self, file: LogFile, start: int) -> None:
        self._file = file
        self._start = self.stop = start

    def pieces(self) -> Iterator[bytes]:
        """Yield the content in pieces; raises `_DamagedError`, for a wrong checksum only at the end."""
        # In gzip format, zlib verifies checksum and length.
        inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._file.seek(self._start)
        while not inflater.eof:
            data = inflater.unconsumed_tail or self._file.read(_STEP)
            try:
                piece = inflater.decompress(data, _PIECE)
            except zlib.error as error:
                raise _DamagedError(f"{type(error).__name__}: {error}") from error
            if piece:
                yield piece
            elif not (data or inflater.eof):
                raise _DamagedError("it ends before its checksum")
        self.stop = self._file.tell() - len(inflater.unused_data)

    def checked_pieces(self) -> Iterator[bytes]:
        """Yield the content after verifying its checksum; content too large to hold is inflated a second time."""
        held, size = list[bytes](), 0
        for piece in self.pieces():
            size += len(piece)
            if size <= _HELD:
                held.append(piece)
        if size <= _HELD:
            yield from held
        else:
            held.clear()
            yield from self.pieces()


def _next_member(file: LogFile, place: int) -> int | None:
    """Return the start of the next member of a gzip file; None after the last one, which zeros may follow."""
    file.seek(place)
    while data := file.read(_STEP):
        if found := data.lstrip(b"\0"):
            return file.tell() - len(found)
    return None


def read_pairs(file: LogFile, chunk: Chunk, names: LogColumns) -> Iterator[Block]:
    """Yield one block from a text of lines `user item`, gzipped or not, without times; raises for any other line."""
    key, data = chunk.partition.key, file.read()
    if has_ending(key, [".gz"]):
        data = gzip.decompress(data)
    if not data.strip():
        return
    header = [names.user_id, names.item_id]
    table = pa.csv.read_csv(
        pa.BufferReader(data),
        pa.csv.ReadOptions(column_names=header),
        pa.csv.ParseOptions(delimiter=" "),
        pa.csv.ConvertOptions(column_types=dict.fromkeys(header, pa.string())),
    )
    yield Block(BlockId(key, 0), TableRows(table, np.arange(len(table))), (), len(table))
