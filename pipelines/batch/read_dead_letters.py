"""Read dead letters again: turn letters, each for one or several rows, into blocks of raw rows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import apache_beam as beam
import numpy as np
import pyarrow as pa

from weir.contracts import CorruptArtefactError, Store
from weir.pipelines.config import PipelineConfig
from weir.pipelines.maintenance.erased_files import REDACTED
from weir.pipelines.runs.progress import PartitionProgress, Progress
from weir.pipelines.transforms.read import PROGRESS, origin_of, read_dead_letters
from weir.readers import (
    LOG_SUFFIXES,
    Block,
    BlockId,
    DeadLetter,
    Format,
    Header,
    Lines,
    Partition,
    Reading,
    Reason,
    TableRows,
    chunks_of,
    generation,
    has_ending,
    read_chunk,
)

__all__ = [
    "LetterPartition",
    "LetterReading",
    "ReadLetters",
    "UnreadableCause",
    "blocks_of",
    "chosen",
    "lines_of",
    "why_left",
]

_WITHOUT_ROW: Final = frozenset(
    {
        *(Reason.UNREADABLE_BLOCK, Reason.KEY_COLLISION, Reason.BEFORE_RETENTION),
        *(Reason.MALFORMED_PROTOBUF, Reason.MALFORMED_AVRO),
    }
)
"""Reasons whose letters do not keep a row, but an item id, the first of several rows or a binary message."""

_REACH: Final = 1 << 20
"""Bytes of a CSV or TSV file that are read at least, in search of the rows of a letter."""

_SHARED: Final = frozenset({Reason.MISSING_FIELD, Reason.WRONG_TYPE, Reason.REPEATED_FIELD})
"""Reasons for which one letter may stand for all rows of a block."""


class UnreadableCause(StrEnum):
    """Why a letter cannot be read again."""

    CUT = "cut"
    WITHOUT_ROW = "without_row"
    FORGOTTEN = "forgotten"
    FILE_GONE = "file_gone"
    BEFORE_ERASURE = "before_erasure"
    MAY_HAVE_COUNTED = "may_have_counted"


@dataclass(frozen=True)
class LetterPartition:
    """The dead letters of one reason in one file, as a partition; `name` is the current name of the file.

    A partition holds either letters with one row each (`line` is 0), or the `rows` rows of the one letter at `line`.
    CSV and TSV rows need the `header` of their log file. Rows of Parquet, and rows of a letter for several, are read
    from the log `file` itself; `places` maps positions in the partition to positions in the file. `is_old` tells that
    users were forgotten after the letters were written.
    """

    key: str
    name: str
    checksum: str
    rows: int
    reason: str
    line: int = 0
    is_old: bool = False
    header: Header | None = None
    file: Partition | None = None
    places: Mapping[int, int] = field(default_factory=dict)
    arrival_ms: int | None = None
    fingerprint: str = ""

    @property
    def size(self) -> int:
        """The position after the last letter."""
        return self.rows + 1

    @property
    def recorded_size(self) -> int:
        """The size, as commits record it."""
        return self.size

    @property
    def format(self) -> Format:
        """The format of the rows; rows of a topic are JSON lines."""
        origin = origin_of(self.name)
        name = origin.rpartition("@")[0] if generation(origin) > 1 else origin
        return next((kind for suffix, kind in LOG_SUFFIXES.items() if has_ending(name, [suffix])), Format.JSON_LINES)

    @property
    def has_columns(self) -> bool:
        """Whether the format is CSV, TSV or Parquet, whose rows need the column names of the log file."""
        return self.format in (Format.DELIMITED, Format.GZIP_DELIMITED, Format.PARQUET)

    @property
    def is_split(self) -> bool:
        """Whether each letter for several rows is a partition of its own."""
        return self.has_columns and self.reason in _SHARED

    @property
    def is_in_file(self) -> bool:
        """Whether the rows must be read from the log file, because the letters do not hold them."""
        return self.line > 0 or self.format is Format.PARQUET


@dataclass(frozen=True)
class LetterReading:
    """A partition to read, from line `start` on; `latest_ms` is the newest plausible event time (ms)."""

    partition: LetterPartition
    start: int = 0
    latest_ms: int | None = None


def lines_of(store: Store, partition: LetterPartition) -> Iterator[tuple[int, DeadLetter]]:
    """Yield (line number, letter) of all letters in the file of a partition; raises `CorruptArtefactError`."""
    letters = read_dead_letters(store, partition.name, partition.checksum)
    if not letters:
        raise CorruptArtefactError(store.path(partition.name), "a commit lists it, but it is missing")
    yield from enumerate(letters, start=1)


def chosen(store: Store, partition: LetterPartition, start: int = 0) -> Iterator[tuple[int, DeadLetter]]:
    """Yield (line number, letter) of the letters that belong to a partition, from line `start` on."""
    for line, letter in lines_of(store, partition):
        if partition.line:
            if line == partition.line:
                yield line, letter
        elif line >= start and letter.reason == partition.reason and not (partition.is_split and letter.stands_for):
            yield line, letter


def why_left(letter: DeadLetter, partition: LetterPartition) -> UnreadableCause | None:
    """Return why a letter of a partition cannot be read again, None if it can."""
    if letter.detail == REDACTED:
        return UnreadableCause.FORGOTTEN
    if letter.may_have_counted:
        return UnreadableCause.MAY_HAVE_COUNTED
    if not partition.line:
        if letter.reason in _WITHOUT_ROW or not letter.raw:
            return UnreadableCause.WITHOUT_ROW
        if letter.row is None:
            return UnreadableCause.CUT
    needs_header = partition.has_columns and partition.format is not Format.PARQUET
    if (partition.is_in_file and partition.file is None) or (needs_header and partition.header is None):
        return UnreadableCause.FILE_GONE
    return UnreadableCause.BEFORE_ERASURE if partition.is_in_file and partition.is_old else None


def blocks_of(store: Store, reading: LetterReading, config: PipelineConfig) -> Iterator[Block]:
    """Yield blocks of the rows of all letters that can be read again; rows have their positions in the partition."""
    partition = reading.partition
    readable = [pair for pair in chosen(store, partition, reading.start) if why_left(pair[1], partition) is None]
    for rows in _rows(partition, readable, config):
        first = int(np.searchsorted(rows.positions, reading.start))
        if first < len(rows.positions):
            rest = rows.piece(first, len(rows.positions))
            yield Block(BlockId(partition.key, int(rest.positions[0])), rest, latest_ms=reading.latest_ms)


def _rows(
    partition: LetterPartition, letters: list[tuple[int, DeadLetter]], config: PipelineConfig
) -> Iterator[Lines | TableRows]:
    """Yield the raw rows of (line number, letter) pairs, from the letters or from the log file."""
    if partition.file is not None and partition.is_in_file and letters:
        lines = range(1, partition.size) if partition.line else (line for line, _ in letters)
        line_at = {partition.places[line]: line for line in lines if line in partition.places}
        if partition.format is Format.PARQUET:
            yield from _rows_of_table(partition.file, line_at, config)
        elif line_at:
            yield from _rows_of_text(partition.file, min(line_at), partition.rows, config)
    else:
        for first in range(0, len(letters), config.chunk_rows):
            part = letters[first : first + config.chunk_rows]
            texts = [row for _, letter in part if (row := letter.row) is not None]
            yield Lines(texts, np.array([line for line, _ in part], np.int64), header=partition.header)


def _rows_of_text(file: Partition, start: int, count: int, config: PipelineConfig) -> Iterator[Lines]:
    """Yield `count` rows of a CSV or TSV file from position `start` on, numbered from 1; reads little beyond them."""
    done, step = 0, max(_REACH, 4 * config.chunk_bytes)
    reach = start + step if file.format is Format.DELIMITED else file.size
    while True:
        head = replace(file, size=min(file.size, reach))
        is_all = head.size == file.size
        chunks, stop = chunks_of(Reading(head, start, only_whole_lines=not is_all), config.chunk_bytes)
        for chunk in chunks:
            for block in read_chunk(chunk, config, config.chunk_rows, config.chunk_bytes):
                if isinstance(content := block.content, Lines) and len(content.lines):
                    rows = content.piece(0, count - done)
                    yield replace(rows, positions=np.arange(done + 1, done + 1 + len(rows.lines), dtype=np.int64))
                    done += len(rows.lines)
                if done == count:
                    return
        if is_all:
            return
        start, reach = stop, reach + 8 * step


def _rows_of_table(table: Partition, line_at: Mapping[int, int], config: PipelineConfig) -> Iterator[TableRows]:
    """Yield the rows of a Parquet file at the positions in `line_at` (position -> line), numbered by line.

    The text of a letter has lost the column types, so the rows come from the file.
    """
    if not line_at:
        return
    places = np.array(sorted(line_at), np.int64)
    chunks, _ = chunks_of(Reading(table, int(places[0])), config.chunk_bytes)
    for chunk in chunks:
        if not ((places >= chunk.start) & (places < chunk.stop)).any():
            continue
        for block in read_chunk(chunk, config, config.chunk_rows, config.chunk_bytes):
            if isinstance(content := block.content, TableRows):
                rows = np.flatnonzero(np.isin(content.positions, places))
                lines = np.array([line_at[place] for place in content.positions[rows].tolist()], np.int64)
                order = np.argsort(lines)
                if len(rows):
                    yield TableRows(content.table.take(pa.array(rows[order])), lines[order], content.others)


class ReadLetters(beam.DoFn):
    """Turns a `LetterReading` into `Block`s; the progress is tagged `PROGRESS`."""

    def __init__(self, store: Store, config: PipelineConfig) -> None:
        self._store = store
        self._config = config

    def process(self, element: LetterReading) -> Iterator[Any]:
        """Read the letters of one partition."""
        yield from blocks_of(self._store, element, self._config)
        read = {element.partition.key: PartitionProgress(element.partition.size)}
        yield beam.pvalue.TaggedOutput(PROGRESS, Progress(partitions=read))
