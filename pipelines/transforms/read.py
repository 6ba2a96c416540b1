"""Read: what is to be read of each partition -> chunks -> blocks of raw rows."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import apache_beam as beam
import msgspec

from pipelines.blocks import Block, BlockId, Letters, PartitionProgress, Progress
from pipelines.config import PipelineConfig
from pipelines.faults import DeadLetter, Fault, Reason
from pipelines.generations import same_start
from pipelines.log_file import LogFile
from pipelines.parquet import read_parquet, row_group_starts
from pipelines.readers import MAX_LINE_BYTES, Chunk, end_of_lines, read_gzip_lines, read_json_lines
from pipelines.sources import Format, Partition
from pipelines.transforms.validate import DEAD

__all__ = ["PROGRESS", "ListChunks", "ReadChunk", "Reading"]

logger = logging.getLogger(__name__)

PROGRESS: Final = "progress"
"""The tag of what was seen (`Progress`)."""


@dataclass(frozen=True)
class Reading:
    """Read `partition` from position `start`, where a row starts; nothing below it is read again.

    With `only_whole_lines` what follows the last newline waits. `latest_ms` is the newest event time that its rows
    may have (`pipelines.arrival`).
    """

    partition: Partition
    start: int = 0
    only_whole_lines: bool = False
    latest_ms: int | None = None


class ListChunks(beam.DoFn):
    """`Reading` to `Chunk`s.

    A file whose content cannot be opened becomes a dead letter, one that its file system does not give an error in the
    log; neither is counted as read, so that the next run tries again.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config

    def process(self, element: Reading) -> Iterator[Any]:
        """List the chunks of one partition."""
        partition = element.partition
        whole = BlockId(partition.key, -1)
        try:
            chunks, stop = self._chunks(element)
        except _UnreadableError as error:
            logger.error("%s", error.fault.detail)
            letter = DeadLetter.of(partition.key, 0, error.fault, b"")
            yield beam.pvalue.TaggedOutput(DEAD, Letters(whole, (letter,)))
            return
        except Exception as error:  # noqa: BLE001 - file systems raise what they like
            logger.error("%s cannot be read now, the next run tries again: %s", partition.url, error)
            return
        yield beam.pvalue.TaggedOutput(DEAD, Letters(whole, ()))
        seen = Progress(partitions={partition.key: PartitionProgress(stop)})
        yield beam.pvalue.TaggedOutput(PROGRESS, seen)
        yield from chunks

    def _chunks(self, reading: Reading) -> tuple[list[Chunk], int]:
        """Return the chunks and the position after the last row; what the file system raises goes up."""
        partition = reading.partition
        if not partition.size:
            return [], 0
        try:
            with partition.open() as file:
                return self._of_content(file, reading)
        except PermissionError as error:
            # This does not pass by itself.
            raise _UnreadableError(Fault(Reason.UNREADABLE_FILE, f"{partition.url}: {error}")) from error

    def _of_content(self, file: LogFile, reading: Reading) -> tuple[list[Chunk], int]:
        try:
            return self._list(file, reading)
        except Exception as error:
            if file.failure is not None:
                raise
            kind = reading.partition.format
            detail = f"{reading.partition.url} cannot be read as {kind}: {type(error).__name__}: {error}"
            raise _UnreadableError(Fault(Reason.UNREADABLE_FILE, detail)) from error

    def _list(self, file: LogFile, reading: Reading) -> tuple[list[Chunk], int]:
        partition, start = reading.partition, reading.start
        if partition.format is Format.JSON_LINES:
            return self._json_chunks(file, reading)
        if partition.format is Format.GZIP_LINES:
            return [Chunk(partition, start, 0, partition.size, start, latest_ms=reading.latest_ms)], 0
        edges = row_group_starts(file)
        chunks = [
            Chunk(partition, first, stop, partition.size, start, group, reading.latest_ms)
            for group, (first, stop) in enumerate(pairwise(edges))
            if stop > max(first, start)
        ]
        return chunks, edges[-1]

    def _json_chunks(self, file: LogFile, reading: Reading) -> tuple[list[Chunk], int]:
        partition, step, start = reading.partition, self._config.chunk_bytes, reading.start
        whole = end_of_lines(file, partition.size, start)
        limit = whole if reading.only_whole_lines else max(start, partition.size)
        stop = limit if _is_whole_value(file, whole, limit) else whole
        # A last line that may still grow is a piece of its own: the next reading starts with it.
        edges = sorted({start, *range((start // step + 1) * step, limit, step), stop, limit})
        return [
            Chunk(partition, first, last, limit, start, latest_ms=reading.latest_ms) for first, last in pairwise(edges)
        ], stop


class _UnreadableError(Exception):
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.detail)
        self.fault = fault


def _is_whole_value(file: LogFile, start: int, stop: int) -> bool:
    """Say whether a last line without its newline is done; else the rest of it may still come."""
    if not start < stop <= start + MAX_LINE_BYTES:
        return False
    file.seek(start)
    try:
        msgspec.json.decode(file.read(stop - start))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


class ReadChunk(beam.DoFn):
    """`Chunk` to `Block`s; whatever a file holds, reading it does not raise."""

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config
        self._columns = [*config.columns.model_dump().values(), *config.item_features.all]

    def process(self, element: Chunk) -> Iterator[Block]:
        """Read one chunk."""
        with element.partition.open() as file:
            for block in self._guarded(file, element):
                for _, fault, _ in block.faults:
                    logger.error("%s", fault.detail)
                yield replace(block, latest_ms=element.latest_ms)

    def _guarded(self, file: LogFile, chunk: Chunk) -> Iterator[Block]:
        at = chunk.start
        try:
            for block in self._blocks(file, chunk):
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

    def _blocks(self, file: LogFile, chunk: Chunk) -> Iterator[Block]:
        rows, size = self._config.chunk_rows, self._config.chunk_bytes
        if chunk.partition.format is Format.JSON_LINES:
            return read_json_lines(file, chunk)
        if chunk.partition.format is Format.GZIP_LINES:
            return read_gzip_lines(file, chunk, rows, size)
        return read_parquet(file, chunk, rows, size, self._columns)


def _refused(chunk: Chunk, position: int, fault: Fault) -> Block:
    return Block(BlockId(chunk.partition.key, position), None, ((position, fault, b""),))


def _was_rewritten(partition: Partition) -> bool:
    try:
        return not same_start(partition, partition.fingerprint)
    except FileNotFoundError:
        # What was opened before is read to its end; under its name there is nothing else.
        return False
