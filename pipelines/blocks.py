"""What flows between the transforms: blocks of raw rows, batches of interactions, and what was seen of both.

A block is a piece of a partition that is read, validated and counted at once.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from contracts import LetterFile
from pipelines.faults import DeadLetter, Fault

__all__ = [
    "Batch",
    "Block",
    "BlockId",
    "Claims",
    "Int64",
    "Letters",
    "LettersWritten",
    "Lines",
    "PartitionProgress",
    "Progress",
    "Rows",
]

Int64: TypeAlias = npt.NDArray[np.int64]

Claims: TypeAlias = dict[int, int]
"""Item key -> check of the id that claims it (`pipelines.claims`)."""


@dataclass(frozen=True, order=True)
class BlockId:
    """A place in a partition; `start` is the position at which the block starts, -1 the file as a whole."""

    partition: str
    start: int

    def dead_letters(self, attempt: str) -> str:
        """Return a name for dead letters of the block in the store; no two calls return the same."""
        name = "file" if self.start < 0 else f"{self.start:015d}"
        return f"dead-letters/{self.partition}/{name}-{secrets.token_hex(4)}-{attempt}.jsonl"


@dataclass(frozen=True)
class Lines:
    """JSON Lines: `lines` (n,) with their `positions` (n,)."""

    lines: list[bytes]
    positions: Int64


@dataclass(frozen=True)
class Rows:
    """Rows of a table whose columns are named as in the log, with their `positions` (n,)."""

    table: pa.Table
    positions: Int64


@dataclass(frozen=True)
class Block:
    """Raw rows of one partition, and the faults found while reading: (position, fault, raw bytes).

    `stop` is the position after its last row, where only reading can tell; rows newer than `latest_ms` (event time)
    cannot be right, because they have arrived before.
    """

    id: BlockId
    content: Lines | Rows | None
    faults: tuple[tuple[int, Fault, bytes], ...] = ()
    stop: int = 0
    latest_ms: int | None = None


@dataclass(frozen=True)
class Letters:
    """All dead letters of one block."""

    block: BlockId
    letters: tuple[DeadLetter, ...]


@dataclass(frozen=True)
class LettersWritten:
    """A file of dead letters that waits for its commit; `last` is the highest position in it."""

    file: LetterFile
    last: int


@dataclass(frozen=True)
class Batch:
    """Valid interactions of one block: `INTERACTION_SCHEMA` rows; `dead` and `stop` tell of the whole block."""

    block: BlockId
    rows: pa.RecordBatch
    dead: int
    stop: int


@dataclass
class PartitionProgress:
    """What a run saw of a partition: position after its last row, dead letters, lowest position by window start."""

    stop: int = 0
    dead: int = 0
    lowest: dict[int, int] = field(default_factory=dict)

    def add(self, other: "PartitionProgress") -> None:
        """Take in what was seen of another part of the partition."""
        self.stop = max(self.stop, other.stop)
        self.dead += other.dead
        for window, position in other.lowest.items():
            self.lowest[window] = min(position, self.lowest.get(window, position))


@dataclass
class Progress:
    """What a run saw of the whole log; `max_event_ms` is the newest event, -1 where there was none.

    `claims` are those on keys that nobody owned before, `contested` the keys that several ids claim.
    """

    max_event_ms: int = -1
    partitions: dict[str, PartitionProgress] = field(default_factory=dict)
    claims: Claims = field(default_factory=dict)
    contested: set[int] = field(default_factory=set)

    def add(self, others: Iterable["Progress"]) -> "Progress":
        """Take in what was seen elsewhere, and return this."""
        for other in others:
            self.max_event_ms = max(self.max_event_ms, other.max_event_ms)
            for key, seen in other.partitions.items():
                self.partitions.setdefault(key, PartitionProgress()).add(seen)
            self._claim(other.claims)
            self.contested |= other.contested
        return self

    def _claim(self, claims: Claims) -> None:
        for key, check in claims.items():
            before = self.claims.setdefault(key, check)
            if before != check:
                self.contested.add(key)
                self.claims[key] = min(before, check)
