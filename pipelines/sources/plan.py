"""Plan a run: compare the present log with what was read and committed."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from weir.contracts import (
    CorruptArtefactError,
    EventClock,
    HistoryFiles,
    LogState,
    SourceSpan,
    Store,
)
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.progress import WHOLE_FILE, PendingRows
from weir.pipelines.runs.run import END_OF_TIME, Base, Listed, Run
from weir.pipelines.runs.run_registry import new_run
from weir.pipelines.transforms.commit import RunOutcome
from weir.pipelines.transforms.read import read_dead_letters, start_of
from weir.readers import Int64, Partition, Reading, latest_event_ms

__all__ = [
    "InHand",
    "Planned",
    "RunPlan",
    "Seen",
    "file_readings",
    "is_due",
    "make_plan",
    "refused_before",
]

logger = logging.getLogger(__name__)


@dataclass
class InHand:
    """The state of this process that no commit holds yet; a process that loses it only reads more again.

    By partition key, `reached` is the position up to which rows are committed or pending in `open_rows`, and `pending`
    the span to commit. `newest_ms` is the newest event time read. All this holds only while the commits resume at the
    positions `after`: a commit of another writer may contain the same rows.
    """

    reached: dict[str, int] = field(default_factory=dict)
    pending: dict[str, SourceSpan] = field(default_factory=dict)
    open_rows: tuple[PendingRows, ...] = ()
    newest_ms: int = -1
    after: dict[str, int] = field(default_factory=dict)

    @property
    def cost(self) -> int:
        """The share of `run_bytes` that the pending rows will take of the run that closes their windows."""
        return sum(rows.cost for rows in self.open_rows)

    def follow(self, sources: Mapping[str, SourceSpan]) -> None:
        """Record the resume positions of this process's own newest commit."""
        self.after = {key: span.resume for key, span in sources.items()}

    def check(self, sources: Mapping[str, SourceSpan]) -> None:
        """Call `forget` if the commits resume elsewhere than at `after`."""
        if self.after != {key: span.resume for key, span in sources.items()}:
            self.forget()
            self.follow(sources)

    def take_in(self, outcome: RunOutcome) -> None:
        """Record the positions, pending rows and newest event time of a completed run."""
        self.reached |= {key: span.stop for key, span in outcome.spans.items()}
        self.pending = {} if outcome.commit else outcome.spans
        self.open_rows, self.newest_ms = outcome.open_rows, outcome.newest_ms

    def forget(self) -> None:
        """Drop the uncommitted state, so that reading restarts from the commits."""
        self.reached, self.pending, self.open_rows, self.newest_ms = {}, {}, (), -1


@dataclass(frozen=True)
class Seen:
    """How far partitions are read when a run is planned; `clock` is the clock of the store.

    `known` are the spans by key, a pending span in place of the committed one; `reached` is `InHand.reached`. With
    `only_whole_lines` an unfinished last line is left to a later run. `held` is `InHand.cost`.
    """

    known: Mapping[str, SourceSpan]
    reached: Mapping[str, int] = field(default_factory=dict)
    clock: EventClock = field(default_factory=EventClock)
    only_whole_lines: bool = False
    held: int = 0

    @classmethod
    def of(
        cls, state: LogState, in_hand: InHand, clock: EventClock | None = None, *, only_whole_lines: bool = False
    ) -> "Seen":
        """Return the positions of commits and of this process together; `clock` defaults to the wall clock."""
        known = state.sources | in_hand.pending
        return cls(known, in_hand.reached, clock or EventClock(), only_whole_lines, in_hand.cost)

    def start(self, key: str) -> int:
        """Return the position from which the next run reads a partition."""
        before = self.known.get(key)
        return self.reached.get(key, before.resume if before else 0)


class Planned(Protocol):
    """A partition to read from position `start` on."""

    @property
    def partition(self) -> Listed:
        """The partition."""

    @property
    def start(self) -> int:
        """The first position to read."""


@dataclass(frozen=True)
class RunPlan:
    """A run, the readings of partitions that it makes, and the history files before it."""

    run: Run
    readings: tuple[Planned, ...]
    histories: HistoryFiles


def make_plan(
    store: Store,
    config: PipelineConfig,
    partitions: Sequence[Any],
    state: LogState,
    in_hand: InHand,
    *,
    secret: str,
    flush: bool,
    only_whole_lines: bool,
    readings_of: Callable[[Sequence[Any], Seen], Sequence[Planned]] | None = None,
) -> RunPlan:
    """Return the plan of the next run over the listed `partitions`.

    `secret` is the store's key secret, `flush` is as for `Run`, `only_whole_lines` as for `Seen`; `readings_of` is
    `Source.readings`, for files by default.
    """
    seen = Seen.of(state, in_hand, EventClock.of(store), only_whole_lines=only_whole_lines)
    readings = (readings_of or partial(file_readings, config))(partitions, seen)
    read = {reading.partition.key: reading.partition for reading in readings}
    concerned = read.keys() | in_hand.pending.keys() | {rows.partition for rows in in_hand.open_rows}
    run = Run(
        id=new_run(),
        base=Base.of(state, concerned),
        partitions=read,
        window_ms=config.window_ms,
        lateness_ms=1000 * config.allowed_lateness_seconds,
        flush=flush,
        secret=secret,
        newest_ms=in_hand.newest_ms,
        pending=in_hand.pending,
        open_rows=in_hand.open_rows,
        refused={one.partition.key: found for one in readings if (found := _refused(store, seen, one)) is not None},
    )
    return RunPlan(run, tuple(readings), state.histories)


def file_readings(config: PipelineConfig, partitions: Iterable[Partition], seen: Seen) -> list[Reading]:
    """Return a reading for each file that is due (`is_due`), from its start position up to its `until`."""
    readings = []
    for partition in partitions:
        start = seen.start(partition.key)
        if is_due(partition, seen) and (partition.until is None or start < partition.until):
            latest = latest_event_ms(partition, seen.clock, config)
            readings.append(Reading(partition, start, only_whole_lines=seen.only_whole_lines, latest_ms=latest))
    return readings


def is_due(partition: Partition, seen: Seen) -> bool:
    """Return whether a file is new, has changed, or has open windows that are not pending."""
    before = seen.known.get(partition.key)
    if before is None or (partition.size, partition.arrival_ms) != (before.size, before.modified_ms):
        return True
    return seen.start(partition.key) < before.stop


def _refused(store: Store, seen: Seen, reading: Planned) -> Int64 | None:
    until = reading.partition.until if isinstance(reading.partition, Partition) else None
    return refused_before(store, seen.known.get(reading.partition.key), reading.start, until)


def refused_before(store: Store, before: SourceSpan | None, start: int, until: int | None = None) -> Int64 | None:
    """Return the positions of a partition's dead letters: all in [start, until), perhaps others before; shape (n,).

    None if the span `before` lists no file of dead letters. Raises `CorruptArtefactError`.
    """
    if before is None or not before.letters:
        return None
    stop = END_OF_TIME if until is None else until
    positions = [np.empty(0, np.int64)]
    for name, last in before.letters.items():
        if last == END_OF_TIME:
            positions.append(np.array([WHOLE_FILE]))
        elif last >= start and start_of(name) < stop:
            found = read_dead_letters(store, name, before.letter_checksums.get(name))
            if not found:
                raise CorruptArtefactError(store.path(name), "a commit lists it, but it is missing")
            positions.append(np.array([letter.position for letter in found]))
    known = np.concatenate(positions)
    return known[known < stop]
