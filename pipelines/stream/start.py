"""Where a stream starts: at the commits, which say it of every partition; of new ones they are made to say it first."""

from collections.abc import Iterable
from secrets import token_hex

from weir.contracts import CommitLog, CommitTakenError, EventClock, LogState, Store
from weir.pipelines.bare_commits import append
from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka.client import KafkaPartition
from weir.pipelines.kafka.source import TopicSource
from weir.pipelines.plan import InHand
from weir.pipelines.stream.config import StreamConfig
from weir.pipelines.stream.reading import Reading
from weir.pipelines.stream.source import PartitionSource

__all__ = ["commit_starts", "first_watermark", "sources"]


def commit_starts(store: Store, source: TopicSource, state: LogState, partitions: list[KafkaPartition]) -> None:
    """Commit where partitions start of which no commit says it; `state` follows.

    With `accept_gap` also where those go on whose messages are gone. Raises `BrokerAwayError`, and `MovedStoreError`
    where another writer has moved the log meanwhile.
    """
    log = CommitLog(store)
    while found := source.starts(partitions, state, InHand()):
        try:
            append(log, state, sources=found)
        except CommitTakenError:
            state.catch_up(log)
            source.check(store, state)


def sources(
    partitions: Iterable[KafkaPartition],
    state: LogState,
    config: PipelineConfig,
    stream: StreamConfig,
    clock: EventClock,
) -> list[PartitionSource]:
    """Return partitions for a new job, from where the commits are.

    All have a start (`commit_starts`); `clock` is the store's.
    """
    watermark_ms, job = first_watermark(state, config.window_ms), token_hex(8)
    return [
        PartitionSource(
            Reading(
                job=job,
                partition=one,
                start=state.sources[one.key].resume,
                watermark_ms=watermark_ms,
                config=config,
                clock=clock,
                batch_messages=stream.batch_messages,
            )
        )
        for one in partitions
    ]


def first_watermark(state: LogState, window_ms: int) -> int:
    """Return the event time (ms) at which partitions go on: the end of the newest window that is committed.

    What is read again of windows before comes with the next one, all of it at once, and is recognised.
    """
    newest = [state.starts[-1] + window_ms] if state.starts else []
    return max([*newest, state.horizon.ms if state.horizon else 0, 0])
