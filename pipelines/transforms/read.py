"""Read: what is to be read of each partition -> chunks -> blocks of raw rows."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import apache_beam as beam
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.blocks import Block, BlockId, Letters, PartitionProgress, Progress
from pipelines.config import PipelineConfig
from pipelines.faults import DeadLetter, Fault, Reason
from pipelines.readers import Chunk, end_of_lines, read_gzip_lines, read_json_lines, read_parquet
from pipelines.sources import Format, Partition
from pipelines.transforms.validate import DEAD

__all__ = ["PROGRESS", "ListChunks", "ReadChunk", "Reading", "first_block"]

logger = logging.getLogger(__name__)

PROGRESS: Final = "progress"
"""The tag of what was seen (`Progress`)."""


@dataclass(frozen=True)
class Reading:
    """Read `partition` from position `start`; with `only_whole_lines` what follows the last newline waits.

    `seen_bytes` is the size up to which it was read before: a file that is smaller now was replaced.
    """

    partition: Partition
    start: int = 0
    seen_bytes: int = 0
    only_whole_lines: bool = False


def first_block(reading: Reading, config: PipelineConfig) -> int:
    """Return the position at which the first block that will be read begins, at or below `reading.start`.

    Parquet blocks restart with every row group, so there the position is only a lower bound.
    """
    if reading.partition.format is Format.JSON_LINES:
        return reading.start // config.chunk_bytes * config.chunk_bytes
    if reading.partition.format is Format.GZIP_LINES:
        return reading.start // config.chunk_rows * config.chunk_rows
    return max(0, reading.start - config.chunk_rows + 1)


class ListChunks(beam.DoFn):
    """`Reading` to `Chunk`s; a file that cannot be opened becomes a dead letter and is not counted as read."""

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
        yield beam.pvalue.TaggedOutput(DEAD, Letters(whole, ()))
        seen = Progress(partitions={partition.key: PartitionProgress(stop)})
        yield beam.pvalue.TaggedOutput(PROGRESS, seen)
        yield from chunks

    def _chunks(self, reading: Reading) -> tuple[list[Chunk], int]:
        partition = reading.partition
        if partition.size < reading.seen_bytes:
            problem = f"has {partition.size} bytes, but {reading.seen_bytes} were read before"
            detail = f"{partition.url} {problem}: logs may only grow, new content needs a new name"
            raise _UnreadableError(Fault(Reason.SHRUNKEN_FILE, detail))
        if not partition.size:
            return [], 0
        try:
            with partition.open() as file:
                return self._list(file, reading)
        except (pa.ArrowException, PermissionError, FileNotFoundError) as error:
            detail = f"{partition.url} cannot be read as {partition.format}: {error}"
            raise _UnreadableError(Fault(Reason.UNREADABLE_FILE, detail)) from error

    def _list(self, file: Any, reading: Reading) -> tuple[list[Chunk], int]:
        partition = reading.partition
        if partition.format is Format.JSON_LINES:
            return self._json_chunks(file, reading)
        if partition.format is Format.GZIP_LINES:
            return [Chunk(partition, 0, 0, partition.size, first_block(reading, self._config))], 0
        chunks, start = [], 0
        metadata = pq.ParquetFile(file).metadata
        for group in range(metadata.num_row_groups):
            stop = start + metadata.row_group(group).num_rows
            if stop > reading.start:
                chunks.append(Chunk(partition, start, stop, partition.size, reading.start, group))
            start = stop
        return chunks, start

    def _json_chunks(self, file: Any, reading: Reading) -> tuple[list[Chunk], int]:
        partition, step = reading.partition, self._config.chunk_bytes
        whole = end_of_lines(file, partition.size)
        limit = whole if reading.only_whole_lines else partition.size
        starts = range(first_block(reading, self._config), limit, step)
        chunks = [Chunk(partition, start, min(start + step, limit), limit) for start in starts]
        if limit > whole:
            file.seek(whole)
            # A last line without its newline is done if it is a whole value; else the rest may still come.
            limit = limit if _is_json(file.read(limit - whole)) else whole
        return chunks, limit


class _UnreadableError(Exception):
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.detail)
        self.fault = fault


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


class ReadChunk(beam.DoFn):
    """`Chunk` to `Block`s."""

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config
        self._columns = [*config.columns.model_dump().values(), *config.item_features.all]

    def process(self, element: Chunk) -> Iterator[Block]:
        """Read one chunk."""
        with element.partition.open() as file:
            for block in self._blocks(file, element):
                for _, fault, _ in block.faults:
                    logger.error("%s", fault.detail)
                yield block

    def _blocks(self, file: Any, chunk: Chunk) -> Iterator[Block]:
        if chunk.partition.format is Format.JSON_LINES:
            return read_json_lines(file, chunk)
        if chunk.partition.format is Format.GZIP_LINES:
            return read_gzip_lines(file, chunk, self._config.chunk_rows)
        return read_parquet(file, chunk, self._config.chunk_rows, self._columns)
