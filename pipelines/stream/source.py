"""The partitions of a topic as sources without an end."""

from collections.abc import Sequence
from typing import Any

import apache_beam as beam
from apache_beam.io.unbounded_source import UnboundedSource, _ReadFromUnboundedSourceDoFn

from weir.pipelines.stream.batch import Batch
from weir.pipelines.stream.config import StreamConfig
from weir.pipelines.stream.mark import MarkCoder
from weir.pipelines.stream.reader import PartitionReader
from weir.pipelines.stream.reading import Reading

__all__ = ["PartitionSource", "ReadPartitions"]


class PartitionSource(UnboundedSource):
    """One partition.

    Its pickle is always the same bytes: engines distribute work, and find it again, by the bytes of an element.
    """

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return _restored, (self.reading.model_dump_json(),)

    def split(self, desired_num_splits: int, options: Any = None) -> list["PartitionSource"]:  # noqa: ARG002 - Beam's
        """Return itself: a partition has one reader."""
        return [self]

    def create_reader(self, options: Any, checkpoint_mark: Any) -> PartitionReader:  # noqa: ARG002 - Beam's
        """Return a reader that goes on at a `Mark`, or starts."""
        return PartitionReader(self.reading, checkpoint_mark)

    def get_checkpoint_mark_coder(self) -> MarkCoder:
        """Return the coder of marks."""
        return MarkCoder()


def _restored(reading: str) -> PartitionSource:
    return PartitionSource(Reading.model_validate_json(reading))


class ReadPartitions(beam.PTransform[Any, Any]):
    """The start of a pipeline to `Batch`es, each at the time of its partition's watermark.

    `beam.io.Read` would put all partitions on one worker, because an engine distributes by element and it makes one of
    all of them: here each partition is one.
    """

    def __init__(self, sources: Sequence[PartitionSource], config: StreamConfig) -> None:
        super().__init__()
        self._sources, self._config = sources, config

    def expand(self, start: Any) -> Any:
        """Add the transforms."""
        config = self._config
        read = _ReadFromUnboundedSourceDoFn(config.poll_seconds, config.bundle_batches, config.bundle_seconds)
        return (
            start
            | "Partitions" >> beam.Create(self._sources, reshuffle=False)
            | "Read" >> beam.ParDo(read).with_output_types(Batch)
        )
