"""A topic as files: what it has now, for those who read a finished log."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka.address import Topic
from weir.pipelines.kafka.client import TopicClient
from weir.pipelines.kafka.consume import RangeReader
from weir.pipelines.kafka.errors import BrokerAwayError
from weir.pipelines.kafka.ranges import OffsetRange
from weir.readers import Lines

__all__ = ["CopiedTopic", "copy_topic"]

_NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True)
class CopiedTopic:
    """What was copied: `rows` messages that have a value; `is_whole` where none was left out."""

    rows: int
    is_whole: bool


def copy_topic(
    config: PipelineConfig, folder: Path, newest: int | None = None, show: Callable[[int, int], None] | None = None
) -> CopiedTopic:
    """Write the messages that the topic `config.log` has now as lines, a file for each partition.

    A line break within a message becomes a blank, which means the same in JSON. Protobuf is spelled as JSON; a message
    that cannot be is a line that no reader accepts, as it is in the pipeline.

    Parameters
    ----------
    folder
        Gets files `0.jsonl`, `1.jsonl` and so on.
    newest
        Copy about so many messages, the last ones of each partition; None: all from `pipeline.kafka.start` on.
    show
        Is called with the offsets that were read, and those that are to be read.

    Raises
    ------
    TopicMissingError, KafkaSettingsError
        Where there is no such topic, or the settings make no client.
    BrokerAwayError
        Where no broker answers, or the messages cannot be read to the end that the topic had at the start.
    """
    client = TopicClient(Topic.parse(config.log), config.kafka)
    partitions = client.partitions()
    begin = client.begin(partitions)
    each = _NO_LIMIT if newest is None else -(-newest // max(1, len(partitions)))
    starts = {one: max(begin[one.number], one.first) for one in partitions}
    ranges = [OffsetRange(one, max(start, one.size - each), one.size, _NO_LIMIT) for one, start in starts.items()]
    total, done, rows = sum(one.stop - one.start for one in ranges), 0, 0
    for one in ranges:
        for count, reached in _copy(one, config, folder):
            rows += count
            if show is not None:
                show(done + reached - one.start, total)
        done += one.stop - one.start
    return CopiedTopic(rows, all(one.start == starts[one.partition] for one in ranges))


def _copy(wanted: OffsetRange, config: PipelineConfig, folder: Path) -> Iterator[tuple[int, int]]:
    """Write a range; yields for each block how many lines it has, and the offset up to which was read."""
    if wanted.start >= wanted.stop:
        return
    reader = RangeReader(wanted, config)
    with (folder / f"{wanted.partition.number}.jsonl").open("wb") as file:
        for block in reader.blocks():
            lines = block.content.lines if isinstance(block.content, Lines) else []
            values = [*lines, *(raw for _, _, raw in block.faults)]
            file.writelines(value.replace(b"\n", b" ") + b"\n" for value in values)
            yield len(values), reader.reached
    if reader.reached < wanted.stop:
        raise BrokerAwayError(
            f"{config.log}: {wanted.partition.name} was read to offset {reader.reached} of {wanted.stop}, then the "
            f"brokers sent nothing for {config.kafka.timeout_seconds:g} s, or the topic was created again; try again"
        )
