"""What a run is to read: the log as it is now, against what is read and committed already."""

import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from contracts import (
    CorruptArtefactError,
    EventClock,
    Layout,
    LogState,
    SourceSpan,
    Store,
    StoreFormat,
    ensure_format,
)
from logs import Int64, KnownFile, Partition, Reading, identified, latest_event_ms
from pipelines.attempts import new_run
from pipelines.config import PipelineConfig
from pipelines.kafka.client import KafkaPartition
from pipelines.kafka.ranges import OffsetRange, plan_ranges
from pipelines.open_rows import OpenRows
from pipelines.positions import END_OF_TIME, WHOLE_FILE, Base, Run
from pipelines.transforms.commit import RunOutcome
from pipelines.transforms.dead_letters import read_dead_letters

__all__ = ["InHand", "LayoutError", "RunPlan", "identify", "make_plan", "open_layout"]

logger = logging.getLogger(__name__)


class LayoutError(ValueError):
    """A setting contradicts what the store already holds."""


@dataclass
class InHand:
    """What this process has read beyond the commits: it spares work, and a restart does without it.

    `reached` is the position up to which the rows of a partition are committed, or in hand as `open_rows`.
    """

    reached: dict[str, int] = field(default_factory=dict)
    pending: dict[str, SourceSpan] = field(default_factory=dict)
    open_rows: tuple[OpenRows, ...] = ()
    newest_ms: int = -1

    def take_in(self, outcome: RunOutcome) -> None:
        """Remember what a run has read."""
        self.reached |= {key: span.stop for key, span in outcome.spans.items()}
        self.pending = {} if outcome.commit else outcome.spans
        self.open_rows, self.newest_ms = outcome.open_rows, outcome.newest_ms


@dataclass(frozen=True)
class RunPlan:
    """A run, and what it reads."""

    run: Run
    readings: tuple[Reading | OffsetRange, ...]


def make_plan(
    store: Store,
    config: PipelineConfig,
    partitions: Iterable[Partition | KafkaPartition],
    state: LogState,
    in_hand: InHand,
    *,
    secret: str,
    flush: bool,
    only_whole_lines: bool,
) -> RunPlan:
    """Return what to read: partitions that are new or have grown, and those whose open windows are not in hand."""
    known, clock = state.sources | in_hand.pending, EventClock.of(store)
    partitions = list(partitions)
    messages = [partition for partition in partitions if isinstance(partition, KafkaPartition)]
    readings: list[Reading | OffsetRange] = [*plan_ranges(messages, known, in_hand.reached, config.run_bytes, clock)]
    for partition in partitions:
        if isinstance(partition, KafkaPartition):
            continue
        before = known.get(partition.key)
        start = in_hand.reached.get(partition.key, before.resume if before else 0)
        if before is None or _has_changed(partition, before) or start < before.stop:
            latest = latest_event_ms(partition, clock, config)
            readings.append(Reading(partition, start, only_whole_lines=only_whole_lines, latest_ms=latest))
    read: dict[str, Partition | KafkaPartition] = {reading.partition.key: reading.partition for reading in readings}
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
        refused={r.partition.key: found for r in readings if (found := _refused(store, r, known)) is not None},
    )
    return RunPlan(run, tuple(readings))


def _has_changed(partition: Partition, before: SourceSpan) -> bool:
    return (partition.size, partition.arrival_ms) != (before.size, before.modified_ms)


def identify(partitions: Iterable[Partition], state: LogState, in_hand: InHand) -> list[Partition]:
    """Return listed files as the partitions that they are: with the keys of their generations (`generations`).

    Left out are files that the file system cannot give now.
    """
    spans = state.sources | in_hand.pending
    known = {key: KnownFile(span.size, span.fingerprint, span.modified_ms) for key, span in spans.items()}
    found = [identified(partition, known) for partition in partitions]
    return [partition for partition in found if partition is not None]


def _refused(store: Store, reading: Reading | OffsetRange, known: Mapping[str, SourceSpan]) -> Int64 | None:
    """Return the positions of a partition's dead letters that may be read again; None without any."""
    before = known.get(reading.partition.key)
    if before is None or not before.letters:
        return None
    positions: list[int] = []
    for name, last in before.letters.items():
        if last == END_OF_TIME:
            positions.append(WHOLE_FILE)
        elif last >= reading.start:
            found = read_dead_letters(store, name, before.letter_checksums.get(name))
            if not found:
                raise CorruptArtefactError(store.path(name), "a commit lists it, but it is missing")
            positions += [letter.position for letter in found]
    return np.array(positions, np.int64)


def open_layout(store: Store, config: PipelineConfig) -> StoreFormat:
    """Give a new store its layout, and refuse settings that contradict that of an old one.

    Raises
    ------
    LayoutError
        Under such settings committed rows would be counted again, or sketches could not be merged.
    StoreFormatError
        If the store has a format that this version cannot read.
    """
    wanted = Layout(window_ms=config.window_ms, user_shards=config.user_shards, sketch=config.sketch.parameters())
    secret = secrets.token_hex(16) if config.secret_keys else ""
    found = ensure_format(store, StoreFormat(layout=wanted, key_secret=secret))
    for setting, old, new in _differences(found, wanted, is_secret=config.secret_keys):
        raise LayoutError(f"{setting} is {new}, but {store.url} was written with {old}: use that, or a new store")
    return found


def _differences(found: StoreFormat, new: Layout, *, is_secret: bool) -> Iterator[tuple[str, object, object]]:
    if bool(found.key_secret) != is_secret:
        yield "secret_keys", bool(found.key_secret), is_secret
    old = found.layout or new
    if old.window_ms != new.window_ms:
        yield "window_seconds", old.window_ms / 1000, new.window_ms / 1000
    if old.user_shards != new.user_shards:
        yield "user_shards", old.user_shards, new.user_shards
    if old.sketch != new.sketch:
        yield "sketch", old.sketch, new.sketch
