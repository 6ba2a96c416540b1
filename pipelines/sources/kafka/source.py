"""A Kafka topic as a source: what to read, where to start, and partitions that have lost messages."""

import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import apache_beam as beam

from weir.contracts import LogState, SourceSpan, Store
from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka_config import BrokerAwayError, StoppedPartitionError, Topic
from weir.pipelines.metrics import TopicMetrics
from weir.pipelines.runs.progress import PartitionProgress, Progress
from weir.pipelines.sources.kafka.client import KafkaPartition, TopicClient
from weir.pipelines.sources.kafka.consume import OffsetRange, RangeReader, plan_ranges
from weir.pipelines.sources.kafka.lines import to_line
from weir.pipelines.sources.plan import InHand, Planned, RunPlan, Seen
from weir.pipelines.sources.source import LogSource
from weir.pipelines.transforms.chain import BlocksToWindows
from weir.pipelines.transforms.read import DEAD, PROGRESS
from weir.readers import Block, generation

__all__ = ["ReadRange", "TopicSource"]


class ReadRange(beam.DoFn):
    """Turns an `OffsetRange` into `Block`s; the progress is tagged `PROGRESS`."""

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config

    def process(self, element: OffsetRange) -> Iterator[Any]:
        """Read one range."""
        reader = RangeReader(element, self._config)
        yield from reader.blocks()
        key = element.partition.key
        seen = {key: PartitionProgress(reader.reached, skipped=reader.skipped)}
        yield beam.pvalue.TaggedOutput(PROGRESS, Progress(partitions=seen, wanted={key: element.stop}))


logger = logging.getLogger(__name__)

_REASONS: Final = {
    "deleted": "the broker has deleted offsets {start} to {first} before they were committed",
    "truncated": "offsets up to {start} were read, but the broker has lost those from {size} on",
}


@dataclass
class TopicSource(LogSource[KafkaPartition]):
    """The Kafka topic that the settings name, as a source."""

    config: PipelineConfig
    metrics: TopicMetrics
    client: TopicClient
    _stopped: dict[str, str] = field(default_factory=dict, init=False)
    """Partition key -> message about the lost messages that stop it."""

    @classmethod
    def open(cls, config: PipelineConfig, metrics: TopicMetrics) -> "TopicSource":
        """Return the topic with a new client; raises `KafkaSettingsError`."""
        to_line(config)  # fail on wrong settings before anything is read
        return cls(config, metrics, TopicClient(Topic.parse(config.log), config.kafka))

    @property
    def stopped(self) -> Set[str]:
        """Keys of the partitions that the last `identify` left out."""
        return self._stopped.keys()

    def discover(self) -> list[KafkaPartition]:
        """Return the partitions; raises `TopicMissingError`, which is a `FileNotFoundError`."""
        with self._asking():
            return self.client.partitions()

    def starts(self, partitions: list[KafkaPartition], state: LogState, in_hand: InHand) -> dict[str, SourceSpan]:
        """Return the start spans of new partitions, and of partitions whose gap is accepted.

        The spans are committed before reading, because "latest" would be another offset after a restart.
        """
        seen = Seen.of(state, in_hand)
        partitions = [_named(one, seen.known) for one in partitions]
        found = self._begin([one for one in partitions if one.key not in seen.known], seen.known)
        if self.config.kafka.accept_gap:
            lost = [one for one in partitions if one.key in seen.known and _lost(one, seen)]
            found |= dict(self._pass_over(one, seen) for one in lost)
        return found

    def identify(self, partitions: list[KafkaPartition], state: LogState, in_hand: InHand) -> list[KafkaPartition]:
        """Return the partitions that have lost no messages; the other partitions become `stopped`."""
        seen = Seen.of(state, in_hand)
        partitions = [_named(one, seen.known) for one in partitions]
        reasons = {one.key: reason for one in partitions if (reason := _lost(one, seen))}
        self._stop([one for one in partitions if one.key in reasons], reasons, seen)
        return [one for one in partitions if one.key not in reasons]

    def cut(self, found: list[KafkaPartition], state: LogState, in_hand: InHand) -> Iterator[list[KafkaPartition]]:
        """Yield all partitions once per run, while unread offsets remain; a run ends after about `run_bytes`."""
        left = self._unread(found, Seen.of(state, in_hand))
        while True:
            before, number = left, state.number
            yield found
            left = self._unread(found, Seen.of(state, in_hand))
            self.is_behind = left > 0
            if not left or (left >= before and state.number == number):
                return

    def readings(self, partitions: Sequence[KafkaPartition], seen: Seen) -> Sequence[Planned]:
        """Return the unread offset ranges; messages are always whole."""
        return plan_ranges(partitions, seen, self.config.run_bytes - seen.held)

    def windows(self, readings: Any, store: Store, plan: RunPlan) -> Any:
        """Add the transforms that read and validate the topic and commit the run."""
        spread = readings | "Spread" >> beam.Reshuffle()
        read = spread | "Read" >> beam.ParDo(ReadRange(self.config)).with_output_types(Block).with_outputs(
            DEAD, PROGRESS, main="blocks"
        )
        blocks = {"blocks": read.blocks, DEAD: read[DEAD], PROGRESS: read[PROGRESS]}
        return blocks | "Windows" >> BlocksToWindows(store, plan.run, self.config, plan.histories)

    def end(self) -> None:
        """Raise `StoppedPartitionError` or `BrokerAwayError` if a bounded run has not read everything."""
        if self._stopped:
            raise StoppedPartitionError("; ".join(self._stopped.values()))
        if self.is_behind:
            seconds = self.config.kafka.timeout_seconds
            raise BrokerAwayError(
                f"{self.config.log}: not read to its end: the brokers sent nothing for {seconds:g} s, or have deleted "
                "messages meanwhile, or no schema registry answered; run it again"
            )

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except BrokerAwayError:
            self.metrics.away.set(1)
            raise
        self.metrics.away.set(0)

    def _begin(self, new: list[KafkaPartition], known: Mapping[str, SourceSpan]) -> dict[str, SourceSpan]:
        """Return key -> start span of new partitions; in a known topic, new partitions start at their first offset."""
        if not new:
            return {}
        if any(key.startswith(new[0].topic_key) for key in known):
            begin = {one.number: one.first for one in new}
        else:
            with self._asking():
                begin = self.client.begin(new)
        return {
            one.key: SourceSpan(start=0, stop=at, resume=at, size=one.size, first=at)
            for one in new
            for at in (begin[one.number],)
        }

    def _pass_over(self, one: KafkaPartition, seen: Seen) -> tuple[str, SourceSpan]:
        """Return the key and span with which a partition continues after a gap, and count the lost offsets.

        A truncated partition gets the key of a new generation, because its offsets now mean other messages.
        """
        start = seen.start(one.key)
        if start < one.first:
            before = seen.known[one.key]
            key, at, lost = one.key, one.first, one.first - start
            span = before.model_copy(
                update={
                    "stop": max(at, before.stop),
                    "resume": at,
                    "counted": {},
                    "open": {},
                    "unlisted": None,
                    "job": "",
                }
            )
        else:
            key, at, lost = _renewed(one.key), one.size, start - one.size
            span = SourceSpan(start=0, stop=at, resume=at, size=one.size, first=at)
        self.metrics.lost.inc(lost)
        logger.warning("%s: a gap of %d offsets is accepted; it is read on from %d as %s", one.name, lost, at, key)
        return key, span

    def _stop(self, lost: list[KafkaPartition], reasons: Mapping[str, str], seen: Seen) -> None:
        found = {}
        for one in lost:
            sentence = _REASONS[reasons[one.key]].format(start=seen.start(one.key), first=one.first, size=one.size)
            found[one.key] = f"{one.name} is stopped: {sentence}"
            if one.key not in self._stopped:
                logger.error("%s", StoppedPartitionError(found[one.key]).explain()[0])
        self._stopped = found
        self.metrics.stop(reasons.values())

    def _unread(self, partitions: list[KafkaPartition], seen: Seen) -> int:
        """Return the number of unread offsets, and set the metric of each partition."""
        left = {one.number: max(0, one.size - seen.start(one.key)) for one in partitions}
        for number, count in left.items():
            self.metrics.unread.labels(str(number)).set(count)
        return sum(left.values())


def _lost(one: KafkaPartition, seen: Seen) -> str | None:
    start = seen.start(one.key)
    if start < one.first:
        return "deleted"
    return "truncated" if start > one.size else None


def _named(one: KafkaPartition, known: Mapping[str, SourceSpan]) -> KafkaPartition:
    """Return the partition with its newest key: after truncations it continues as ``key@2``, ``key@3``."""
    key = one.key
    while (later := _renewed(key)) in known:
        key = later
    return replace(one, key=key)


def _renewed(key: str) -> str:
    number = generation(key)
    return f"{key.rpartition('@')[0] if number > 1 else key}@{number + 1}"
