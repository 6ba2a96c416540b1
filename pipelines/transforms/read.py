"""Read: what is to be read of each partition -> chunks -> blocks of raw rows."""

import logging
from collections.abc import Iterator
from typing import Any, Final

import apache_beam as beam

from weir.pipelines.config import PipelineConfig
from weir.pipelines.progress import PartitionProgress, Progress
from weir.pipelines.transforms.validate import DEAD
from weir.readers import Block, BlockId, Chunk, DeadLetter, Letters, Reading, UnreadableError, chunks_of, read_chunk

__all__ = ["PROGRESS", "ListChunks", "ReadChunk"]

logger = logging.getLogger(__name__)

PROGRESS: Final = "progress"
"""The tag of what was seen (`Progress`)."""


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
            chunks, stop = chunks_of(element, self._config.chunk_bytes)
        except UnreadableError as error:
            logger.error("%s", error.fault.detail)
            letter = DeadLetter.of(partition.key, 0, error.fault, b"")
            yield beam.pvalue.TaggedOutput(DEAD, Letters(whole, (letter,)))
            return
        except Exception as error:  # noqa: BLE001 - file systems raise what they like
            logger.error("%s cannot be read now, the next run tries again: %s", partition.url, error)
            return
        yield beam.pvalue.TaggedOutput(DEAD, Letters(whole, ()))
        seen = Progress(partitions={partition.key: PartitionProgress(stop)})
        if partition.until is not None:
            # The file goes on: the input is not complete, and a commit must not say that more was read.
            seen.wanted[partition.key] = partition.until + 1
        yield beam.pvalue.TaggedOutput(PROGRESS, seen)
        yield from chunks


class ReadChunk(beam.DoFn):
    """`Chunk` to `Block`s; whatever a file holds, reading it does not raise."""

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config

    def process(self, element: Chunk) -> Iterator[Block]:
        """Read one chunk."""
        for block in read_chunk(element, self._config, self._config.chunk_rows, self._config.chunk_bytes):
            for _, fault, _ in block.faults:
                logger.error("%s", fault.detail)
            yield block
