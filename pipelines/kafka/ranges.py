"""What a run reads of a topic: a range of offsets of each partition, together within the memory of a run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from contracts import EventClock, SourceSpan
from pipelines.kafka.client import KafkaPartition

__all__ = ["OffsetRange", "first_unread", "plan_ranges"]


@dataclass(frozen=True)
class OffsetRange:
    """Read offsets [start, stop) of a partition, or fewer: about `limit` bytes are read.

    Offsets below `known` have been read before, by this process or as of a commit. `clock` is the one of the store.
    """

    partition: KafkaPartition
    start: int
    stop: int
    limit: int
    known: int = 0
    clock: EventClock = field(default_factory=EventClock)


def first_unread(partition: KafkaPartition, known: Mapping[str, SourceSpan], reached: Mapping[str, int]) -> int:
    """Return the offset from which a partition is read: where this process is, or else where the commits are."""
    before = known.get(partition.key)
    return reached.get(partition.key, before.resume if before else partition.first)


def plan_ranges(
    partitions: Iterable[KafkaPartition],
    known: Mapping[str, SourceSpan],
    reached: Mapping[str, int],
    limit: int,
    clock: EventClock,
) -> list[OffsetRange]:
    """Return the ranges of partitions that have anything to read, of about `limit` bytes together.

    Each gets its share of what is unread, so that the event times of partitions that are behind stay together. Left out
    are partitions of which nobody has said where they start.
    """
    begun = [one for one in partitions if one.key in known or one.key in reached]
    starts = {one: first_unread(one, known, reached) for one in begun}
    unread = {one: one.size - start for one, start in starts.items() if start < one.size}
    total = sum(unread.values())
    return [
        OffsetRange(
            partition=one,
            start=starts[one],
            stop=one.size,
            limit=max(1, limit * count // total),
            known=max(known[one.key].stop if one.key in known else 0, reached.get(one.key, 0)),
            clock=clock,
        )
        for one, count in unread.items()
    ]
