"""Pieces of work: what is to be read of a file, and the chunks and blocks that it is cut into."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from logs.blocks import Int64
from logs.sources import Partition

__all__ = ["Chunk", "Reading", "cuts"]


@dataclass(frozen=True)
class Reading:
    """Read `partition` from position `start`, where a row starts; nothing below it is read again.

    With `only_whole_lines` what follows the last newline waits. `latest_ms` is the newest event time that its rows
    may have (`logs.arrival`).
    """

    partition: Partition
    start: int = 0
    only_whole_lines: bool = False
    latest_ms: int | None = None


@dataclass(frozen=True)
class Chunk:
    """A piece of work: positions [start, stop) of a partition; nothing is read beyond byte `limit`.

    Rows below `skip` are not wanted, and `skip` is where a row starts; Parquet is read by `row_group`. `latest_ms` is
    the newest event time that the rows may have.
    """

    partition: Partition
    start: int
    stop: int
    limit: int
    skip: int = 0
    row_group: int = 0
    latest_ms: int | None = None


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
