"""Sources of rows: the log, or anything else that lists partitions with positions."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from shlex import quote
from typing import Any, Final, Generic, TypeVar

from prometheus_client import CollectorRegistry

from weir.contracts import EventClock, LogState, SourceSpan, Store, UserError
from weir.pipelines.config import PipelineConfig
from weir.pipelines.layout import identify_files
from weir.pipelines.metrics import TopicMetrics
from weir.pipelines.runs.positions import Listed
from weir.pipelines.sources.plan import InHand, Planned, RunPlan, Seen, file_readings
from weir.pipelines.transforms.chain import BlocksToWindows, ReadBlocks
from weir.readers import LOG_SUFFIXES, Format, Partition, discover, first_look, is_topic
from weir.readers.look import ENOUGH_ROWS

__all__ = [
    "WINDOWS",
    "FileSource",
    "LogSource",
    "MovedStoreError",
    "Source",
    "UselessLogError",
    "check_arrived",
    "check_home",
    "log_source",
]

WINDOWS: Final = "windows"
"""The partition key of another store's windows; keys of files end with a suffix."""

_INFLATION = 10
"""Approximate ratio of JSON Lines to gzip or Parquet of the same rows."""

_KINDS: Final = f"a log has files of {', '.join(LOG_SUFFIXES)}"

P = TypeVar("P", bound=Listed)


class MovedStoreError(UserError):
    """The log continues in another store, or is about to."""


class UselessLogError(UserError):
    """The log has no usable row; the message has the commonest reason and the setting to change."""


class Source(ABC, Generic[P]):
    """A source of rows. Positions in a partition ascend, and the row at a position never changes.

    Every method but `check` and `windows` raises `BrokerAwayError` while the source cannot be reached.
    """

    is_behind: bool = False
    """Whether less was read than was listed, so that the driver must look again."""

    @abstractmethod
    def check(self, store: Store, state: LogState) -> None:
        """Refuse a store that must not take rows from this source; raises a `UserError`."""

    @abstractmethod
    def discover(self) -> list[P]:
        """Return the present partitions; raises `FileNotFoundError` if the source does not exist yet."""

    def starts(self, _partitions: list[P], _state: LogState, _in_hand: InHand) -> dict[str, SourceSpan]:
        """Return start spans by key that must be committed before these partitions are read."""
        return {}

    def in_log(self, partitions: list[P]) -> Set[str] | None:
        """Return the keys of all log files; None if unknown, then retention forgets no file."""
        return {partition.key for partition in partitions}

    @abstractmethod
    def identify(self, partitions: list[P], state: LogState, in_hand: InHand) -> list[P]:
        """Return the readable partitions with their keys and fingerprints."""

    @abstractmethod
    def cut(self, found: list[P], state: LogState, in_hand: InHand) -> Iterator[list[P]]:
        """Yield the partitions of each run, at least once: each run fits in memory, and the last one covers all.

        A run ends before the next one is requested, and has updated `state` and `in_hand` by then.
        """

    @abstractmethod
    def readings(self, partitions: Sequence[P], seen: Seen) -> Sequence[Planned]:
        """Return what a run reads of the partitions from `cut`."""

    @abstractmethod
    def windows(self, readings: Any, store: Store, plan: RunPlan) -> Any:
        """Add the transforms from `readings` to the commit of a run."""

    def look(self, _partitions: list[P], _clock: EventClock, *, is_all: bool) -> str:  # noqa: ARG002 - of other sources
        """Return why a run must not commit a new log yet, "" if it may.

        `is_all`: no more input will come. Raises a `UserError` if nothing is usable.
        """
        return ""

    def end(self) -> None:
        """Raise a `UserError` if a bounded run has not read everything."""


class LogSource(Source[P]):
    """A log; a store accepts rows of any log, since partition keys tell them apart."""

    def check(self, store: Store, state: LogState) -> None:
        """Refuse a store that has moved, or an unfinished rebuild; raises `MovedStoreError`."""
        check_home(store, state)


def check_home(store: Store, state: LogState) -> None:
    """Refuse a store that has moved, or an unfinished rebuild; raises `MovedStoreError`."""
    if state.moved_to:
        raise MovedStoreError(
            f"{store.url}: has moved to {state.moved_to}: run the pipeline with --store {quote(state.moved_to)}"
        )
    if _is_half_rebuilt(state):
        raise MovedStoreError(
            f"{store.url}: is being rebuilt from the windows of another store, which still takes in the log: "
            f"run `weir rebuild --to {quote(store.url)} --cut-over` first, else rows would count twice"
        )


def check_arrived(store: Store, state: LogState) -> None:
    """Refuse a store that has moved to a rebuild that is unfinished; raises `MovedStoreError`."""
    if state.moved_to and _is_half_rebuilt(LogState.open(Store(state.moved_to))):
        raise MovedStoreError(
            f"{store.url}: is moving to {state.moved_to}, which does not hold all of it yet: "
            f"run `weir rebuild --from {quote(store.url)} --to {quote(state.moved_to)} --cut-over` first, "
            "with the settings of the rebuild"
        )


def _is_half_rebuilt(state: LogState) -> bool:
    """Return whether a store takes in windows of another one that still has the log."""
    return WINDOWS in state.sources and not state.moved_from


@dataclass(frozen=True)
class FileSource(LogSource[Partition]):
    """The log files of the settings."""

    config: PipelineConfig

    def discover(self) -> list[Partition]:
        """Return the files; raises `FileNotFoundError` if the log does not exist."""
        return discover(self.config.log)

    def look(self, partitions: list[Partition], clock: EventClock, *, is_all: bool) -> str:
        """Raise `UselessLogError` if no row is valid: refused rows would stay refused under better settings."""
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
        """Yield the files of each run: about `run_bytes` of new ones more each time, at last all."""
        seen: Mapping[str, SourceSpan] = state.sources | in_hand.pending
        sizes = list(accumulate(_new_bytes(partition, seen.get(partition.key)) for partition in found))
        for count, size in enumerate(sizes[:-1], start=1):
            if size // self.config.run_bytes < sizes[count] // self.config.run_bytes:
                yield found[:count]
        yield found

    def readings(self, partitions: Sequence[Partition], seen: Seen) -> Sequence[Planned]:
        """Return the files that are new or have changed."""
        return file_readings(self.config, partitions, seen)

    def windows(self, readings: Any, store: Store, plan: RunPlan) -> Any:
        """Read, validate and commit."""
        blocks = readings | "Read log" >> ReadBlocks(self.config)
        return blocks | "Windows" >> BlocksToWindows(store, plan.run, self.config, plan.histories)


def _new_bytes(partition: Partition, seen: SourceSpan | None) -> int:
    """Return the approximate size of the unread part, in bytes of JSON Lines."""
    size = max(0, partition.size - (seen.size if seen else 0))
    return size if partition.format in (Format.JSON_LINES, Format.DELIMITED) else _INFLATION * size


def log_source(config: PipelineConfig, metrics: TopicMetrics | None = None) -> LogSource[Any]:
    """Return the log of the settings, files or a topic; raises `KafkaSettingsError`."""
    if not is_topic(config.log):
        return FileSource(config)
    # Load the Kafka client only for a topic.
    from weir.pipelines.sources.kafka.source import TopicSource  # noqa: PLC0415

    return TopicSource.open(config, metrics or TopicMetrics(CollectorRegistry()))
