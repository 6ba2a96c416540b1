"""A file to the chunks that it is read in, each at once; they can be read in any order, on any machine."""

from itertools import pairwise

import msgspec

from weir.readers.blocks import Chunk, Reading
from weir.readers.faults import Fault, Reason
from weir.readers.lines import MAX_LINE_BYTES, end_of_lines
from weir.readers.log_file import LogFile
from weir.readers.parquet import row_group_starts
from weir.readers.sources import Format

__all__ = ["UnreadableError", "chunks_of"]


class UnreadableError(Exception):
    """A file cannot be opened as what it is, however often that is tried; `fault` says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.detail)
        self.fault = fault


def chunks_of(reading: Reading, size: int) -> tuple[list[Chunk], int]:
    """Return the chunks of a file, and the position after the last row where that is known before reading (else 0).

    Files of lines are cut at multiples of `size` bytes; gzip is one chunk, Parquet has one for each row group.

    Raises
    ------
    UnreadableError
        If the content is not of the file's format, or permission to read it is missing.
    Exception
        Whatever else its file system raises: it may work at the next attempt.
    """
    partition = reading.partition
    if not partition.size:
        return [], 0
    try:
        with partition.open() as file:
            return _of_content(file, reading, size)
    except PermissionError as error:
        # Trying again does not help.
        raise UnreadableError(Fault(Reason.UNREADABLE_FILE, f"{partition.url}: {error}")) from error


def _of_content(file: LogFile, reading: Reading, size: int) -> tuple[list[Chunk], int]:
    partition = reading.partition
    try:
        if partition.format in (Format.JSON_LINES, Format.DELIMITED):
            return _line_chunks(file, reading, size)
        if partition.format is Format.PARQUET:
            return _row_groups(file, reading)
    except Exception as error:
        if file.failure is not None:
            raise
        detail = f"{partition.url} cannot be read as {partition.format}: {type(error).__name__}: {error}"
        raise UnreadableError(Fault(Reason.UNREADABLE_FILE, detail)) from error
    return [Chunk(partition, reading.start, 0, partition.size, reading.start, latest_ms=reading.latest_ms)], 0


def _row_groups(file: LogFile, reading: Reading) -> tuple[list[Chunk], int]:
    partition, start = reading.partition, reading.start
    edges = row_group_starts(file)
    chunks = [
        Chunk(partition, first, stop, partition.size, start, group, reading.latest_ms)
        for group, (first, stop) in enumerate(pairwise(edges))
        if stop > max(first, start)
    ]
    return chunks, edges[-1]


def _line_chunks(file: LogFile, reading: Reading, step: int) -> tuple[list[Chunk], int]:
    partition, start = reading.partition, reading.start
    whole = end_of_lines(file, partition.size, start)
    limit = whole if reading.only_whole_lines else max(start, partition.size)
    # Values without a newline look complete wherever they end: it is the reader who says that nothing more comes.
    is_whole = partition.format is Format.DELIMITED or _is_whole_value(file, whole, limit)
    stop = limit if is_whole else whole
    # A last line that may still grow is a chunk of its own: the next reading starts with it.
    edges = sorted({start, *range((start // step + 1) * step, limit, step), stop, limit})
    return [
        Chunk(partition, first, last, limit, start, latest_ms=reading.latest_ms) for first, last in pairwise(edges)
    ], stop


def _is_whole_value(file: LogFile, start: int, stop: int) -> bool:
    """Say whether a last line without its newline is complete; else the rest of it may still come."""
    if not start < stop <= start + MAX_LINE_BYTES:
        return False
    file.seek(start)
    try:
        msgspec.json.decode(file.read(stop - start))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True
