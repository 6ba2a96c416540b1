"""The last rows of a log that is too long to be read whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from weir.readers.blocks import Block, BlockId, Chunk, Letters, Reading, ValidatedBlock
from weir.readers.config import LogConfig
from weir.readers.faults import DeadLetter
from weir.readers.first_look import row_count
from weir.readers.listing import UnreadableError, chunks_of
from weir.readers.reading import read_chunk
from weir.readers.sources import Format, Partition
from weir.readers.validate import Validator

__all__ = ["Newest", "read_newest"]

_BLOCK_ROWS: Final = 1 << 16
_BLOCK_BYTES: Final = 8 << 20


@dataclass(frozen=True)
class Newest:
    """What was read of a log: its `blocks` with their dead letters, in the order of the log, and their raw `rows`.

    In place of each dead letter stands the first of its block with the same reason: all of them may take more memory
    than the valid rows.
    """

    blocks: list[tuple[ValidatedBlock, Letters]]
    rows: int
    is_whole: bool


def read_newest(
    partitions: Sequence[Partition],
    config: LogConfig,
    rows: int,
    *,
    block_rows: int = _BLOCK_ROWS,
    block_bytes: int = _BLOCK_BYTES,
) -> Newest:
    """Return the last `rows` rows of finished files, up to a block more; of a gzip file the first ones instead.

    In a log in order of arrival these are the newest events; in one that is sorted by user, all events of its last
    users. Rows may lack a time, as in `read_log`. Errors of the file system are raised.
    """
    validator, read, is_whole = Validator(config, needs_time=False), 0, True
    pieces: list[list[tuple[ValidatedBlock, Letters]]] = []
    for found in _backwards(partitions, block_bytes):
        if read >= rows:
            is_whole = False
            break
        piece = _last_rows(found, rows - read) if isinstance(found, Chunk) else found
        is_whole &= piece is found
        pieces.append([])
        for block in (
            read_chunk(piece, config, block_rows, block_bytes, checked=False) if isinstance(piece, Chunk) else (piece,)
        ):
            # In a gzip file, whose length in rows nothing tells beforehand.
            if read >= rows:
                is_whole = False
                break
            read += row_count(block)
            valid, dead = validator.validate(block)
            pieces[-1].append((valid, _by_reason(dead)))
    return Newest([block for piece in reversed(pieces) for block in piece], read, is_whole)


def _backwards(partitions: Sequence[Partition], size: int) -> Iterator[Chunk | Block]:
    """Yield the chunks of files, the last one first; for a file that cannot be read the block that says why."""
    for partition in reversed(partitions):
        try:
            yield from reversed(chunks_of(Reading(partition), size)[0])
        except UnreadableError as error:
            yield Block(BlockId(partition.key, -1), None, ((0, error.fault, b""),))


def _by_reason(dead: Letters) -> Letters:
    firsts = dict[str, DeadLetter]()
    return Letters(dead.block, tuple(firsts.setdefault(letter.reason, letter) for letter in dead.letters))


def _last_rows(chunk: Chunk, rows: int) -> Chunk:
    """Return the last rows of a chunk where its format says where they start, else all of it."""
    is_longer = chunk.partition.format is Format.PARQUET and chunk.stop - max(chunk.start, chunk.skip) > rows
    return replace(chunk, skip=chunk.stop - rows) if is_longer else chunk
