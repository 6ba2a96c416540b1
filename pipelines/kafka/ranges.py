"""What a run reads of a topic: a range of offsets of each partition, together within the memory of a run."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from weir.contracts import EventClock
from weir.pipelines.kafka.client import KafkaPartition
from weir.pipelines.plan import Seen

__all__ = ["OffsetRange", "plan_ranges"]


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


def plan_ranges(partitions: Iterable[KafkaPartition], seen: Seen, limit: int) -> list[OffsetRange]:
    """Return the ranges of partitions that have anything to read, of about `limit` bytes together.

    Each gets its share of what is unread, so that the event times of partitions that are behind stay together. Left out
    are partitions of which no commit says where they start.
    """
    starts = {one: seen.start(one.key) for one in partitions if one.key in seen.known}
    unread = {one: one.size - start for one, start in starts.items() if start < one.size}
    total = sum(unread.values())
    return [
        OffsetRange(
            partition=one,
            start=starts[one],
            stop=one.size,
            limit=max(1, limit * count // total),
            known=max(seen.known[one.key].stop, seen.reached.get(one.key, 0)),
            clock=seen.clock,
        )
        for one, count in unread.items()
    ]
