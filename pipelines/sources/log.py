"""The log of the settings: a topic, or files that are cut into runs of bounded cost."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from prometheus_client import CollectorRegistry

from weir.contracts import EventClock, LogState, Store, UserError
from weir.pipelines.config import PipelineConfig
from weir.pipelines.layout import identify_files
from weir.pipelines.metrics import TopicMetrics
from weir.pipelines.sources.plan import InHand, Planned, RunPlan, Seen, file_readings, is_due
from weir.pipelines.sources.source import LogSource
from weir.pipelines.transforms.chain import BlocksToWindows, ReadBlocks
from weir.readers import (
    LOG_SUFFIXES,
    PIECE_COST,
    Partition,
    Reading,
    discover,
    extents,
    first_look,
    is_topic,
    most_cost,
)
from weir.readers.look import ENOUGH_ROWS

__all__ = ["FileSource", "UselessLogError", "log_source"]

logger = logging.getLogger(__name__)

_KINDS: Final = f"a log has files of {', '.join(LOG_SUFFIXES)}"


class UselessLogError(UserError):
    """The log has no usable row; the message has the commonest reason and the setting to change."""


@dataclass(frozen=True)
class FileSource(LogSource[Partition]):
    """The log files that the settings name, as a source."""

    config: PipelineConfig

    def discover(self) -> list[Partition]:
        """Return the files; raises `FileNotFoundError` if the log does not exist."""
        return discover(self.config.log)

    def look(self, partitions: list[Partition], clock: EventClock, *, is_all: bool) -> str:
        """Return why no row is valid yet, "" if some row is; raise `UselessLogError` if that will not change.

        A run with such settings would commit refused rows, which stay refused under better settings.
        """
        if is_all and not partitions:
            raise UselessLogError(f"{self.config.log} holds no file that can be read: {_KINDS}")
        seen = first_look(partitions, self.config, clock=clock)
        if not seen.valid and (seen.rows >= ENOUGH_ROWS or (is_all and seen.rows)):
            raise UselessLogError(f"{self.config.log} has no valid row: {seen.problem}. Nothing was committed")
        return "" if seen.valid else seen.problem

    def identify(self, partitions: list[Partition], state: LogState, in_hand: InHand) -> list[Partition]:
        """Return the files with the keys of their generations (`layout.identify_files`)."""
        return identify_files(partitions, state.sources | in_hand.pending)

    def cut(self, found: list[Partition], state: LogState, in_hand: InHand) -> Iterator[list[Partition]]:
        """Yield the files that each run reads, with end positions that keep the run within `run_bytes`; at last all."""
        seen = Seen.of(state, in_hand)
        due = [one for one in found if is_due(one, seen)]
        if in_hand.cost + sum(most_cost(one, seen.start(one.key)) for one in due) > self.config.run_bytes:
            yield from _Cutter(self.config, state, in_hand).runs(found)
        yield found

    def readings(self, partitions: Sequence[Partition], seen: Seen) -> Sequence[Planned]:
        """Return a reading for each file that is new, has changed or has open windows (`is_due`)."""
        return file_readings(self.config, partitions, seen)

    def windows(self, readings: Any, store: Store, plan: RunPlan) -> Any:
        """Add the transforms that read and validate the files and commit the run."""
        blocks = readings | "Read log" >> ReadBlocks(self.config)
        return blocks | "Windows" >> BlocksToWindows(store, plan.run, self.config, plan.histories)


@dataclass
class _Cutter:
    """Cuts files into runs that cost at most `run_bytes` each (`weir.readers.extent`)."""

    config: PipelineConfig
    state: LogState
    in_hand: InHand
    _used: int = field(default=0, init=False)
    _is_empty: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self._used = self.in_hand.cost

    def runs(self, found: list[Partition]) -> Iterator[list[Partition]]:
        """Yield the partitions that each run but the last reads."""
        for place, partition in enumerate(found):
            if is_due(partition, self._seen):
                for until in self._stops(partition):
                    here = [replace(partition, until=until)] if until > self._seen.start(partition.key) else []
                    yield [*found[:place], *here]

    @property
    def _seen(self) -> Seen:
        return Seen.of(self.state, self.in_hand)

    def _stops(self, partition: Partition) -> Iterator[int]:
        """Yield the positions in a file at which runs end; after a run that ended early, measure again from there."""
        start, is_moving = self._seen.start(partition.key), True
        while is_moving:
            is_moving = False
            for until in self._measured(partition, start):
                yield until
                if (reached := self._seen.start(partition.key)) < until:
                    start, is_moving = reached, reached > start
                    break

    def _measured(self, partition: Partition, start: int) -> Iterator[int]:
        """Yield the positions in a file at which runs are full; a run reads at least one row."""
        limit, last = self.config.run_bytes, start
        # With a small limit, keep most of it for rows.
        piece = min(PIECE_COST, limit // 8)
        if not self._is_empty and self._used + piece > limit:
            yield start
            self._used, self._is_empty = self.in_hand.cost, True
        self._used += piece
        try:
            for behind, costs in extents(Reading(partition, start), self.config):
                ends, first = np.append(0, np.cumsum(costs)), 0
                while first < len(behind):
                    room = limit - self._used
                    fitting = max(first, int(np.searchsorted(ends, ends[first] + room, side="right")) - 1)
                    stop = max(fitting, first + self._is_empty)
                    self._used += int(ends[stop] - ends[first])
                    self._is_empty &= stop == first
                    if stop < len(behind):
                        yield int(behind[stop - 1]) if stop else last
                        self._used, self._is_empty = self.in_hand.cost + piece, True
                    first = stop
                last = int(behind[-1]) if len(behind) else last
        except Exception as error:  # noqa: BLE001 - file systems raise what they like
            # Reading the file fails, too, and logs the error.
            logger.debug("%s cannot be measured: %s", partition.url, error)
        self._is_empty = False


def log_source(config: PipelineConfig, metrics: TopicMetrics | None = None) -> LogSource[Any]:
    """Return the log of the settings, files or a topic; raises `KafkaSettingsError`."""
    if not is_topic(config.log):
        return FileSource(config)
    # Load the Kafka client only for a topic.
    from weir.pipelines.sources.kafka.source import TopicSource  # noqa: PLC0415

    return TopicSource.open(config, metrics or TopicMetrics(CollectorRegistry()))
