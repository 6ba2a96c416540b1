"""Samples a log: pieces of some of its files, evenly spaced, so that a check takes seconds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, TypeVar

from weir.contracts import EventClock
from weir.readers import (
    Block,
    BlockId,
    Chunk,
    Format,
    LogConfig,
    Partition,
    Reading,
    UnreadableError,
    chunks_of,
    discover,
    latest_event_ms,
    read_chunk,
)

__all__ = ["Piece", "Sample", "spread", "take_sample"]

_FILES: Final = 8
_PIECES: Final = 24
_PIECE_BYTES: Final = 1 << 20
_PIECE_ROWS: Final = 1 << 14
_BLOCK_BYTES: Final = 1 << 24
_GZIP: Final = (Format.GZIP_LINES, Format.GZIP_DELIMITED)

T = TypeVar("T")


@dataclass(frozen=True)
class Piece:
    """A sampled piece of a file: a chunk with the `numbers` of its sampled blocks.

    For a file that cannot be read, `unreadable` is a block with the error instead.
    """

    partition: Partition
    chunk: Chunk | None
    numbers: tuple[int, ...] = ()
    unreadable: Block | None = None

    def read(self, config: LogConfig) -> Iterator[Block]:
        """Yield the sampled blocks, read by the settings `config`."""
        if self.unreadable is not None:
            yield self.unreadable
        if self.chunk is not None:
            latest = latest_event_ms(self.partition, EventClock(), config)
            chunk = replace(self.chunk, latest_ms=latest)
            blocks = read_chunk(chunk, config, _PIECE_ROWS, _BLOCK_BYTES, checked=False)
            first_ones = islice(enumerate(blocks), max(self.numbers, default=-1) + 1)
            yield from (block for number, block in first_ones if number in self.numbers)


@dataclass(frozen=True)
class Sample:
    """A log's partitions, the sampled `pieces`, and their `share` of the log.

    None: the share is unknown, because files are gzipped.
    """

    partitions: list[Partition]
    pieces: list[Piece]
    share: float | None

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(partition.size for partition in self.partitions)


def take_sample(config: LogConfig) -> Sample:
    """Choose the pieces of a log; raises `FileNotFoundError` if there is no log, and `TopicError` for a topic."""
    partitions = [partition for partition in discover(config.log) if partition.size]
    chosen = spread(partitions, _FILES)
    pieces: list[Piece] = []
    read: float | None = 0.0
    for partition in chosen:
        sampled, share = _pieces(partition, max(3, _PIECES // len(chosen)))
        pieces += sampled
        read = None if read is None or share is None else read + share * partition.size
    size = sum(partition.size for partition in partitions)
    return Sample(partitions, pieces, read / size if read is not None and size else None)


def spread(elements: Sequence[T], most: int) -> list[T]:
    """Return at most `most` of the elements, evenly spaced, including the first and the last."""
    if len(elements) <= most:
        return list(elements)
    return [elements[number * (len(elements) - 1) // (most - 1)] for number in range(most)]


def _pieces(partition: Partition, most: int) -> tuple[list[Piece], float | None]:
    """Return at most about `most` pieces of a file, and their share of the file; None if the share is unknown."""
    try:
        chunks, stop = chunks_of(Reading(partition), _PIECE_BYTES)
    except UnreadableError as error:
        return [Piece(partition, None, (), Block(BlockId(partition.key, -1), None, ((0, error.fault, b""),)))], 1.0
    if partition.format in _GZIP:
        return [Piece(partition, chunk, tuple(range(most))) for chunk in chunks], None
    if not chunks:
        return [], 1.0
    chosen = spread(chunks, most)
    if partition.format is not Format.PARQUET:
        share = sum(chunk.stop - chunk.start for chunk in chosen) / partition.size
        return [Piece(partition, chunk, (0,)) for chunk in chosen], min(share, 1.0)
    each = max(3, most // len(chosen))
    pieces = [Piece(partition, chunk, tuple(range(_block_count(chunk))[:each])) for chunk in chosen[:-1]]
    pieces += [Piece(partition, chunk, tuple(spread(range(_block_count(chunk)), each))) for chunk in chosen[-1:]]
    rows = sum(_rows(piece.chunk, number) for piece in pieces if piece.chunk for number in piece.numbers)
    return pieces, rows / max(1, stop)


def _rows(group: Chunk, number: int) -> int:
    """Return the number of rows in block `number` of a row group; the last block is shorter than the others."""
    return min(_PIECE_ROWS, group.stop - group.start - number * _PIECE_ROWS)


def _block_count(group: Chunk) -> int:
    """Return the number of blocks in a row group."""
    return -(-(group.stop - group.start) // _PIECE_ROWS)
