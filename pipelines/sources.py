"""Where the rows of a pipeline come from: a log, or what else can be listed as partitions with positions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Protocol

from contracts import LogState, SourceSpan, Store, UserError
from logs import Format, Partition, discover
from pipelines.chain import BlocksToWindows, ReadBlocks
from pipelines.config import PipelineConfig
from pipelines.plan import InHand, RunPlan, identify

__all__ = ["WINDOWS", "LogSource", "MovedStoreError", "Source"]

WINDOWS: Final = "windows"
"""The key of the windows of another store as a partition; that of a file ends with its suffix."""

_INFLATION = 10
"""JSON Lines are about so many times as large as gzip or Parquet of the same rows."""


class MovedStoreError(UserError):
    """The log goes on in another store, or is about to; the message says in which."""


class Source(Protocol):
    """What a pipeline reads. Positions in its partitions ascend, and the row at a position never changes."""

    def check(self, store: Store, state: LogState) -> None:
        """Refuse a store that must not take rows from this source; raises a `UserError`."""

    def discover(self) -> list[Partition]:
        """Return the partitions as they are now; raises `FileNotFoundError` where there is nothing yet."""

    def identify(self, partitions: list[Partition], state: LogState, in_hand: InHand) -> list[Partition]:
        """Return listed partitions with their keys and fingerprints; those that cannot be read now are left out."""

    def cut(self, found: list[Partition], seen: Mapping[str, SourceSpan]) -> Iterator[list[Partition]]:
        """Yield what each of successive runs reads, at least once: memory bounds a run. The last is all of it."""

    def windows(self, readings: Any, store: Store, plan: RunPlan) -> Any:
        """Add the transforms from `Reading`s to the commit of a run."""


@dataclass(frozen=True)
class LogSource:
    """The log that the settings name."""

    config: PipelineConfig

    def check(self, store: Store, state: LogState) -> None:
        """Refuse a store that has moved, or whose rebuild has not ended; raises `MovedStoreError`."""
        if state.moved_to:
            raise MovedStoreError(
                f"{store.url}: has moved to {state.moved_to}: run the pipeline with --store {state.moved_to}"
            )
        if WINDOWS in state.sources and not state.moved_from:
            raise MovedStoreError(
                f"{store.url}: is being rebuilt from the windows of another store, which still takes in the log: "
                f"run `weir rebuild --to {store.url} --cut-over` first, else rows would count twice"
            )

    def discover(self) -> list[Partition]:
        """Return the files; raises `FileNotFoundError` where there is no log."""
        return discover(self.config.log)

    def identify(self, partitions: list[Partition], state: LogState, in_hand: InHand) -> list[Partition]:
        """Return the files as the partitions that they are (`plan.identify`)."""
        return identify(partitions, state, in_hand)

    def cut(self, found: list[Partition], seen: Mapping[str, SourceSpan]) -> Iterator[list[Partition]]:
        """Yield the files of each run, about `run_bytes` of new ones, and at last all."""
        sizes = list(accumulate(_new_bytes(partition, seen.get(partition.key)) for partition in found))
        for count, size in enumerate(sizes[:-1], start=1):
            if size // self.config.run_bytes < sizes[count] // self.config.run_bytes:
                yield found[:count]
        yield found

    def windows(self, readings: Any, store: Store, plan: RunPlan) -> Any:
        """Read, validate and commit."""
        blocks = readings | "Read log" >> ReadBlocks(self.config)
        return blocks | "Windows" >> BlocksToWindows(store, plan.run, self.config, plan.histories)


def _new_bytes(partition: Partition, seen: SourceSpan | None) -> int:
    """Return how much there is to read, roughly in bytes of JSON Lines."""
    size = max(0, partition.size - (seen.size if seen else 0))
    return size if partition.format is Format.JSON_LINES else _INFLATION * size
