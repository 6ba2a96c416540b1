"""Read: offset ranges of a topic -> blocks of raw rows."""

from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka.consume import RangeReader
from weir.pipelines.kafka.ranges import OffsetRange
from weir.pipelines.progress import PartitionProgress, Progress
from weir.pipelines.transforms.read import PROGRESS

__all__ = ["ReadRange"]


class ReadRange(beam.DoFn):
    """`OffsetRange` to `Block`s; how far it was read leaves by the tag `PROGRESS`."""

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config

    def process(self, element: OffsetRange) -> Iterator[Any]:
        """Read one range."""
        reader = RangeReader(element, self._config)
        yield from reader.blocks()
        key = element.partition.key
        seen = {key: PartitionProgress(reader.reached, skipped=reader.skipped)}
        yield beam.pvalue.TaggedOutput(PROGRESS, Progress(partitions=seen, wanted={key: element.stop}))
