"""Chunks to blocks of raw rows, whatever the format; and a whole log to valid rows and dead letters."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from weir.readers.blocks import Block, BlockId, Chunk, Letters, Reading, ValidatedBlock
from weir.readers.config import LogConfig
from weir.readers.delimited import with_header
from weir.readers.faults import Fault, Reason
from weir.readers.generations import same_start
from weir.readers.lines import read_gzip_lines, read_lines, read_rows
from weir.readers.listing import UnreadableError, chunks_of
from weir.readers.log_file import LogFile
from weir.readers.pairs import read_pairs
from weir.readers.parquet import columns_of, read_parquet
from weir.readers.quotes import Quotes
from weir.readers.sources import Format, Partition
from weir.readers.validate import Validator

__all__ = ["read_chunk", "read_log"]

_BLOCK_ROWS: Final = 1 << 16
_BLOCK_BYTES: Final = 8 << 20


def read_log(partitions: Iterable[Partition], config: LogConfig) -> Iterator[tuple[ValidatedBlock, Letters]]:
    """Yield the valid rows and the dead letters of finished files, block by block, file after file.

    Rows may lack a time: it is null then. They are not held against the arrival of their file, because a copy of a
    log has a modification time of its own. Errors of the file system are raised.
    """
    validator = Validator(config, needs_time=False)
    for partition in partitions:
        for block in _blocks_of(partition, config):
            yield validator.validate(block)


def _blocks_of(partition: Partition, config: LogConfig) -> Iterator[Block]:
    try:
        chunks, _ = chunks_of(Reading(partition), _BLOCK_BYTES)
    except UnreadableError as error:
        yield Block(BlockId(partition.key, -1), None, ((0, error.fault, b""),))
        return
    for chunk in chunks:
        yield from read_chunk(chunk, config, _BLOCK_ROWS, _BLOCK_BYTES)


def read_chunk(chunk: Chunk, config: LogConfig, rows: int, size: int, *, checked: bool = True) -> Iterator[Block]:
    """Yield the blocks of a chunk, of at most `rows` rows (of text, four times as many) and about `size` bytes each.

    Of a gzip file only what the checksums confirm; not `checked`, the first rows of a large one come at once.
    Whatever a file holds, reading it does not raise: damage is a fault of the block in which it is met. Errors of the
    file system are raised.
    """
    with chunk.partition.open() as file:
        for block in _guarded(file, chunk, _blocks(file, chunk, config, rows, size, checked=checked)):
            yield replace(block, latest_ms=chunk.latest_ms)


def _guarded(file: LogFile, chunk: Chunk, blocks: Iterator[Block]) -> Iterator[Block]:
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
            return with_header(read_rows(file, chunk, Quotes(chunk.header.delimiter), rows), chunk.header)
        case Format.GZIP_DELIMITED:
            assert chunk.header is not None  # noqa: S101 - `chunks_of` has read it
            quotes = Quotes(chunk.header.delimiter)
            return with_header(read_gzip_lines(file, chunk, rows, size, quotes, checked=checked), chunk.header)
        case Format.PARQUET:
            return read_parquet(file, chunk, rows, size, columns_of(config))
        case Format.PAIRS:
            return read_pairs(file, chunk, config.columns)


def _refused(chunk: Chunk, position: int, fault: Fault) -> Block:
    return Block(BlockId(chunk.partition.key, position), None, ((position, fault, b""),))


def _was_rewritten(partition: Partition) -> bool:
    try:
        return not same_start(partition, partition.fingerprint)
    except FileNotFoundError:
        # What was opened before is read to its end; under its name there is nothing else.
        return False
