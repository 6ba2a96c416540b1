"""What reading and validating pass on: blocks of raw rows, the valid rows of a block, and its dead letters.

A block is a piece of a partition that is read and validated at once.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logs.faults import DeadLetter, Fault

__all__ = ["Block", "BlockId", "Int64", "Letters", "Lines", "TableRows", "ValidatedBlock"]

Int64: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, order=True)
class BlockId:
    """A place in a partition; `start` is the position at which the block starts, -1 the file as a whole."""

    partition: str
    start: int


@dataclass(frozen=True)
class Lines:
    """JSON Lines: `lines` (n,) with their `positions` (n,), ascending.

    `latest_ms` (n,) are the newest event times that they may have, where each has arrived at a time of its own.
    """

    lines: list[bytes]
    positions: Int64
    latest_ms: Int64 | None = None

    def piece(self, start: int, stop: int) -> "Lines":
        """Return the lines from the one numbered `start` up to `stop`."""
        latest = None if self.latest_ms is None else self.latest_ms[start:stop]
        return Lines(self.lines[start:stop], self.positions[start:stop], latest)


@dataclass(frozen=True)
class TableRows:
    """Rows of a table whose columns are named as in the log, with their `positions` (n,), ascending."""

    table: pa.Table
    positions: Int64

    def piece(self, start: int, stop: int) -> "TableRows":
        """Return the rows from the one numbered `start` up to `stop`."""
        return TableRows(self.table[start:stop], self.positions[start:stop])


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
