"""What reading and validating pass on: blocks of raw rows, the valid rows of a block, and its dead letters.

A block is a piece of a partition that is read and validated at once. Chunks are what is read of a file at once, in any
order.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.readers.faults import DeadLetter, Fault
from weir.readers.sources import Partition

__all__ = [
    "Block",
    "BlockId",
    "Bool",
    "Chunk",
    "Header",
    "Int64",
    "Letters",
    "Lines",
    "Reading",
    "TableRows",
    "ValidatedBlock",
    "cuts",
]

Bool = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, order=True)
class BlockId:
    """A place in a partition; `start` is the position at which the block starts, -1 the file as a whole."""

    partition: str
    start: int


@dataclass(frozen=True)
class Header:
    """What the first row of a CSV or TSV file says about the others: the columns' names, and what separates them."""

    names: tuple[str, ...]
    delimiter: str


@dataclass(frozen=True)
class Lines:
    """Lines of text (n,) with their `positions` (n,), ascending: JSON, or values separated as the `header` says.

    With a header a line is a row: it may hold line breaks within quotes.

    `latest_ms` (n,) are the newest event times that they may have, where each has arrived at a time of its own.
    """

    lines: list[bytes]
    positions: Int64
    latest_ms: Int64 | None = None
    header: Header | None = None

    def piece(self, start: int, stop: int) -> "Lines":
        """Return the lines from the one numbered `start` up to `stop`."""
        latest = None if self.latest_ms is None else self.latest_ms[start:stop]
        return Lines(self.lines[start:stop], self.positions[start:stop], latest, self.header)

    @property
    def nbytes(self) -> int:
        """Bytes of the lines."""
        return sum(map(len, self.lines))


@dataclass(frozen=True)
class TableRows:
    """Rows of a table whose columns are named as in the log, with their `positions` (n,), ascending.

    `others` are columns of the file that were not read.
    """

    table: pa.Table
    positions: Int64
    others: tuple[str, ...] = ()

    def piece(self, start: int, stop: int) -> "TableRows":
        """Return the rows from the one numbered `start` up to `stop`."""
        return TableRows(self.table[start:stop], self.positions[start:stop], self.others)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(self.table.nbytes)


@dataclass(frozen=True)
class Block:
    """Raw rows of one partition, and the faults found while reading: (position, fault, raw bytes).

    `stop` is the position after its last row, where only reading shows it; rows newer than `latest_ms` (event time)
    cannot be right, because they have arrived before.
    """

    id: BlockId
    content: Lines | TableRows | None
    faults: tuple[tuple[int, Fault, bytes], ...] = ()
    stop: int = 0
    latest_ms: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return self.content.nbytes if self.content else 0


@dataclass(frozen=True)
class Letters:
    """All dead letters of one block."""

    block: BlockId
    letters: tuple[DeadLetter, ...]


@dataclass(frozen=True)
class ValidatedBlock:
    """Valid interactions of one block: `INTERACTION_SCHEMA` rows; `dead` and `stop` concern the whole block."""

    block: BlockId
    rows: pa.RecordBatch
    dead: int
    stop: int


@dataclass(frozen=True)
class Reading:
    """Read `partition` from position `start`, where a row starts; nothing below it is read again.

    With `only_whole_lines` what follows the last newline waits. `latest_ms` is the newest event time that its rows
    may have (`weir.readers.sources`).
    """

    partition: Partition
    start: int = 0
    only_whole_lines: bool = False
    latest_ms: int | None = None


@dataclass(frozen=True)
class Chunk:
    """A piece of work: positions [start, stop) of a partition; nothing is read beyond byte `limit`.

    Rows below `skip` are not wanted, and `skip` is where a row starts; `stop` is 0 where only reading shows it. Parquet
    is read from `row_group` on, by row groups. `latest_ms` is the newest event time that the rows may have. A chunk of
    a CSV or TSV file has its `header`, and starts and stops where rows do.
    """

    partition: Partition
    start: int
    stop: int
    limit: int
    skip: int = 0
    row_group: int = 0
    latest_ms: int | None = None
    header: Header | None = None


def cuts(sizes: Int64, limit: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) of consecutive pieces of at most `rows` rows and `limit` bytes, or of one larger row.

    `sizes` (n,) are the bytes of each row.
    """
    ends, start = np.cumsum(sizes), 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        full = int(np.searchsorted(ends, before + limit, side="right"))
        stop = min(max(start + 1, full), start + rows)
        yield start, min(stop, len(sizes))
        start = stop
