"""Cut files of a log into chunks, which can be read in any order, and read chunks as blocks of raw rows."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

import msgspec

from weir.readers.blocks import Block, BlockId, Chunk, Fault, Header, Letters, Reading, Reason, ValidatedBlock
from weir.readers.config import LogConfig
from weir.readers.delimited import header_of, with_header
from weir.readers.lines import MAX_LINE_BYTES, end_of_lines, read_gzip_lines, read_lines, read_pairs, read_rows
from weir.readers.parquet import FEW_ROWS, columns_of, read_parquet, row_group_starts
from weir.readers.row_ends import QuoteTracker
from weir.readers.sources import Format, LogFile, Partition, same_start
from weir.readers.validate import Validator

__all__ = ["UnreadableError", "chunks_of", "read_chunk", "read_log"]

logger = logging.getLogger(__name__)

_NEAR: Final = 1 << 13
_FAR: Final = 1 << 20
_BLOCK_ROWS: Final = 1 << 16
_BLOCK_BYTES: Final = 8 << 20


class UnreadableError(Exception):
    """A file cannot be opened in its format, and a retry would not help; `fault` says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.detail)
        self.fault = fault


def chunks_of(reading: Reading, size: int) -> tuple[list[Chunk], int]:
    """Return the chunks of a file, and the position after its last row, 0 if the position is unknown before reading.

    JSON Lines are cut at multiples of `size` bytes, CSV and TSV at the next row; gzip is one chunk, Parquet has one per
    row group, or per several small ones. CSV and TSV files are read up to once, to follow their quotes.

    Raises
    ------
    UnreadableError
        If the content does not have the file's format, or permission to read it is missing.
    Exception
        Any other error of its file system: a retry may succeed.
    """
    partition = reading.partition
    if not partition.size:
        return [], 0
    try:
        with partition.open() as file:
            return _of_content(file, reading, size)
    except PermissionError as error:
        # A retry does not help.
        raise UnreadableError(Fault(Reason.UNREADABLE_FILE, f"{partition.url}: {error}")) from error


def _of_content(file: LogFile, reading: Reading, size: int) -> tuple[list[Chunk], int]:
    """Return what `chunks_of` returns for an open file; raises `UnreadableError` for content of another format."""
    partition = reading.partition
    try:
        if partition.format is Format.JSON_LINES:
            return _line_chunks(file, reading, size)
        if partition.format is Format.DELIMITED:
            return _row_chunks(file, reading, size)
        if partition.format is Format.PARQUET:
            return _row_groups(file, reading)
        header = header_of(file, partition) if partition.format is Format.GZIP_DELIMITED else None
    except Exception as error:
        if file.failure is not None:
            raise
        detail = f"{partition.url} cannot be read as {partition.format}: {type(error).__name__}: {error}"
        raise UnreadableError(Fault(Reason.UNREADABLE_FILE, detail)) from error
    start, stop, latest_ms = reading.start, partition.until or 0, reading.latest_ms
    # The position after the last readable row is unknown: nothing is read of a damaged member.
    return [Chunk(partition, start, stop, partition.size, start, latest_ms=latest_ms, header=header)], 0


def _row_groups(file: LogFile, reading: Reading) -> tuple[list[Chunk], int]:
    """Return the chunks of a Parquet file, and the position after its last row."""
    partition, start = reading.partition, reading.start
    edges = row_group_starts(file)
    end = edges[-1] if partition.until is None else min(partition.until, edges[-1])
    chunks = list[Chunk]()
    for group, (first, stop) in enumerate(pairwise(edges)):
        if min(stop, end) <= max(first, start):
            continue
        if chunks and stop - chunks[-1].start <= FEW_ROWS:
            # A row group as a chunk of its own costs as much as thousands of rows.
            chunks[-1] = replace(chunks[-1], stop=min(stop, end))
        else:
            chunks.append(Chunk(partition, first, min(stop, end), partition.size, start, group, reading.latest_ms))
    return chunks, end


def _line_chunks(file: LogFile, reading: Reading, step: int) -> tuple[list[Chunk], int]:
    """Return the chunks of JSON Lines, of `step` bytes, and the position after the last complete line."""
    partition, start = reading.partition, reading.start
    size = partition.size if partition.until is None else partition.until
    whole = end_of_lines(file, size, start)
    limit = whole if reading.only_whole_lines else max(start, size)
    stop = limit if _is_whole_value(file, whole, limit) else whole
    # A last line that may still grow is a chunk of its own, with which the next reading starts.
    edges = sorted({start, *range((start // step + 1) * step, limit, step), stop, limit})
    return [
        Chunk(partition, first, last, limit, start, latest_ms=reading.latest_ms) for first, last in pairwise(edges)
    ], stop


def _is_whole_value(file: LogFile, start: int, stop: int) -> bool:
    """Return whether the bytes [start, stop), a last line without a newline, are a complete JSON value."""
    if not start < stop <= start + MAX_LINE_BYTES:
        return False
    file.seek(start)
    try:
        msgspec.json.decode(file.read(stop - start))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def _row_chunks(file: LogFile, reading: Reading, step: int) -> tuple[list[Chunk], int]:
    """Return the chunks of a CSV or TSV file, of about `step` bytes, and the position after the last complete row."""
    partition, start = reading.partition, reading.start
    header = header_of(file, partition, only_whole=reading.only_whole_lines)
    if header is None:
        return [], start
    size = partition.size if partition.until is None else partition.until
    edges, whole, is_open = _row_edges(file, header, start, size, step)
    limit = whole if reading.only_whole_lines else max(start, size)
    # Values without a newline look complete wherever they end: only the reader knows that nothing more comes.
    stop = whole if is_open else limit
    if size - whole > MAX_LINE_BYTES:
        logger.warning("%s: from byte %d on it waits for the end of a row, or of its quotes", partition.url, whole)
    places = sorted({*edges, stop, limit})
    return [
        Chunk(partition, first, last, limit, start, latest_ms=reading.latest_ms, header=header)
        for first, last in pairwise(places)
    ], stop


def _row_edges(file: LogFile, header: Header, start: int, size: int, step: int) -> tuple[list[int], int, bool]:
    """Return the starts of chunks of about `step` bytes, the position after the last whole row, and a flag.

    The flag tells that quotes are open at byte `size`. A row starts at `start`.
    """
    edges, known = [start], start
    for edge in range((start // step + 1) * step, size, step):
        if edge > known:
            found = _next_row(file, header, known, edge, size)
            if found is None:
                break
            edges.append(known := found)
    return edges, *_last_row(file, header, known, size)


def _next_row(file: LogFile, header: Header, known: int, edge: int, size: int) -> int | None:
    """Return the first row that starts at or after byte `edge`; `known`, before it, is the start of a row."""
    at, quotes = _followed(file, header, known, edge)
    file.seek(at)
    while at < size and (piece := file.read(min(size - at, min(_FAR, edge - 1 - at) if at < edge - 1 else _NEAR))):
        # The line break before a row at the edge is still to come.
        if at + len(piece) < edge:
            quotes.skip(piece)
        else:
            breaks, outside = quotes.breaks(piece)
            rows = breaks[outside] + at + 1
            if len(rows := rows[rows >= edge]):
                return int(rows[0])
        at += len(piece)
    return None


def _last_row(file: LogFile, header: Header, known: int, size: int) -> tuple[int, bool]:
    """Return the position after the last whole row within `size` bytes, and whether quotes are open at the end."""
    for begin, quotes in (_followed(file, header, known, size), (known, QuoteTracker(header.delimiter))):
        last, at = known, begin
        file.seek(at)
        while at < size and (piece := file.read(min(_FAR, size - at))):
            breaks, outside = quotes.breaks(piece)
            if outside.any():
                last = at + int(breaks[outside][-1]) + 1
            at += len(piece)
        if last > known:
            break
    return last, quotes.is_open


def _followed(file: LogFile, header: Header, known: int, place: int) -> tuple[int, QuoteTracker]:
    """Return a position before `place` at which the state of quotes is certain, and a tracker from there on.

    The position is `known`, the start of a row, or nearer to `place`.
    """
    quotes, begin = QuoteTracker(header.delimiter), max(known, place - _NEAR)
    if begin > known:
        file.seek(begin)
        if (found := quotes.behind(file.read(place - begin))) is not None:
            return begin + found[0], found[1]
    return known, quotes


def read_log(partitions: Iterable[Partition], config: LogConfig) -> Iterator[tuple[ValidatedBlock, Letters]]:
    """Yield the valid rows and the dead letters of finished files, block by block, file after file.

    Rows may lack a time, which is then null. The arrival of files is ignored, because a copy of a log has modification
    times of its own. Errors of the file system are raised.
    """
    validator = Validator(config, needs_time=False)
    for partition in partitions:
        for block in _blocks_of(partition, config):
            yield validator.validate(block)


def _blocks_of(partition: Partition, config: LogConfig) -> Iterator[Block]:
    """Yield the blocks of a finished file; for an unreadable file, a block with the fault."""
    try:
        chunks, _ = chunks_of(Reading(partition), _BLOCK_BYTES)
    except UnreadableError as error:
        yield Block(BlockId(partition.key, -1), None, ((0, error.fault, b""),))
        return
    for chunk in chunks:
        yield from read_chunk(chunk, config, _BLOCK_ROWS, _BLOCK_BYTES)


def read_chunk(chunk: Chunk, config: LogConfig, rows: int, size: int, *, checked: bool = True) -> Iterator[Block]:
    """Yield the blocks of a chunk, of at most `rows` rows (of text, four times as many) and about `size` bytes each.

    If `checked`, gzip content comes only after its checksum was verified; otherwise the first rows of a large file come
    at once. Damaged content does not raise, it becomes a fault of its block. Errors of the file system are raised.
    """
    with chunk.partition.open() as file:
        for block in _guarded(file, chunk, _blocks(file, chunk, config, rows, size, checked=checked)):
            yield replace(block, latest_ms=chunk.latest_ms)


def _guarded(file: LogFile, chunk: Chunk, blocks: Iterator[Block]) -> Iterator[Block]:
    """Yield the blocks; end with a block that holds a fault if the content is damaged or the file was rewritten."""
    at = chunk.start
    try:
        for block in blocks:
            if _was_rewritten(chunk.partition):
                detail = f"{chunk.partition.url} was rewritten while it was read; the new content is read as new"
                yield _refused(chunk, block.id.start, Fault(Reason.REWRITTEN_FILE, detail))
                return
            at = max(block.stop, block.id.start + 1)
            yield block
    except Exception as error:
        if file.failure is not None:
            raise
        detail = f"{chunk.partition.url}: {type(error).__name__}: {error}; nothing is read from position {at} on"
        yield _refused(chunk, at, Fault(Reason.UNREADABLE_BLOCK, detail))


def _blocks(file: LogFile, chunk: Chunk, config: LogConfig, rows: int, size: int, *, checked: bool) -> Iterator[Block]:
    match chunk.partition.format:
        case Format.JSON_LINES:
            return read_lines(file, chunk, rows)
        case Format.GZIP_LINES:
            return read_gzip_lines(file, chunk, rows, size, checked=checked)
        case Format.DELIMITED:
            assert chunk.header is not None  # noqa: S101 - `chunks_of` has read it
            return with_header(read_rows(file, chunk, QuoteTracker(chunk.header.delimiter), rows), chunk.header)
        case Format.GZIP_DELIMITED:
            assert chunk.header is not None  # noqa: S101 - `chunks_of` has read it
            quotes = QuoteTracker(chunk.header.delimiter)
            return with_header(read_gzip_lines(file, chunk, rows, size, quotes, checked=checked), chunk.header)
        case Format.PARQUET:
            return read_parquet(file, chunk, rows, size, columns_of(config))
        case Format.PAIRS:
            return read_pairs(file, chunk, config.columns)


def _refused(chunk: Chunk, position: int, fault: Fault) -> Block:
    """Return a block without rows that holds a fault at a position."""
    return Block(BlockId(chunk.partition.key, position), None, ((position, fault, b""),))


def _was_rewritten(partition: Partition) -> bool:
    try:
        return not same_start(partition, partition.fingerprint)
    except FileNotFoundError:
        # An open file is read to its end; no other file has its name now.
        return False
