"""Replays a finished log faster than real time: its rows appear as segment files, in order, each when it is due.

JSON Lines, CSV and TSV (also gzipped) keep the bytes of their lines; Parquet stays Parquet. The whole log is held in
memory.

The log is cut by event time into slices of equal length. A slice becomes one segment, written atomically when it is
due, so that a reader sees whole segments only, and their concatenation is the log. Names are derived from the slices: a
replay that was killed continues after its last segment.
"""

import gzip
import io
import logging
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from weir.contracts import EventClock, Store
from weir.contracts.base.models import FrozenModel
from weir.readers import (
    LOG_SUFFIXES,
    Block,
    BlockId,
    Header,
    Int64,
    Lines,
    LogConfig,
    TableRows,
    TopicError,
    Validator,
    has_ending,
    rows_of,
    topic_of,
)

__all__ = [
    "LogProfile",
    "LogSource",
    "ReplayConfig",
    "ReplaySummary",
    "check_plan",
    "nice_lateness",
    "nice_window",
    "open_log",
    "planned_log",
    "replay",
]

log = logging.getLogger(__name__)

_HOUR: Final = 3600
_NICE_SECONDS: Final = (
    *(60, 120, 300, 600, 1200, 1800, _HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR),
    *(days * 24 * _HOUR for days in (1, 2, 4, 7, 14, 21, 28, 56, 91, 182, 364)),
)
_MOST_WINDOWS: Final = 60


@dataclass(frozen=True)
class LogProfile:
    """Number of rows and span of event time (ms) of a log."""

    rows: int
    start_ms: int
    end_ms: int

    @property
    def window_seconds(self) -> int:
        """A suitable window length for the span; see `nice_window`."""
        return nice_window((self.end_ms - self.start_ms) / 1000)

    def __str__(self) -> str:
        first, last = (
            datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d") for ms in (self.start_ms, self.end_ms)
        )
        return f"{self.rows:,} rows from {first} to {last}"


def nice_window(span_seconds: float) -> int:
    """Return the shortest usual window length (1, 2, 5 minutes ... 1, 2, 4, 7 days ...) that gives at most 60 windows.

    Each length is at most 2.5 times the one before, so a log of 24 minutes or more has 24 to 60 windows.
    """
    return next((length for length in _NICE_SECONDS if span_seconds <= length * _MOST_WINDOWS), _NICE_SECONDS[-1])


def nice_lateness(window_seconds: int) -> int:
    """Return the seconds that a window of a finished log stays open: a hundredth of it, a minute at least."""
    return max(60, window_seconds // 100)


class LogSource(Protocol):
    """A log in memory, whose rows can be returned as files."""

    @property
    def suffix(self) -> str:
        """The suffix of a segment's file name."""

    @property
    def profile(self) -> LogProfile:
        """Number of rows and span of event time."""

    @property
    def arrival(self) -> Int64:
        """Arrival time of each row, event time in milliseconds, (rows,), never decreasing."""

    def rows(self, start: int, stop: int) -> Lines | TableRows:
        """Return rows start to stop (exclusive), raw."""

    def segment(self, start: int, stop: int) -> bytes:
        """Return rows start to stop (exclusive) as a file."""


def open_log(path: Path, config: LogConfig | None = None) -> LogSource:
    """Read a log in the format of its suffix, one of `LOG_SUFFIXES`.

    `config` has its column names and time format. Raises `FileNotFoundError`, `TopicError`, and `ValueError` for
    another suffix or if no row has a valid event time.
    """
    config = config or LogConfig()
    if (topic := topic_of(path)) is not None:
        raise TopicError(f"{topic}: a Kafka topic is a live log; only a finished file is replayed")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such log file")
    if has_ending(path.name, [".parquet"]):
        return _ParquetLog.read(path, config)
    if has_ending(path.name, LOG_SUFFIXES):
        return _LinesLog.read(path, config)
    raise ValueError(f"{path}: unknown format; a log ends in {', '.join(LOG_SUFFIXES)}")


@dataclass(frozen=True)
class _LinesLog:
    """A log of lines in memory; line i is ``data[bounds[i]:bounds[i + 1]]``.

    `first` is the header line of CSV and TSV, with its line break.
    """

    data: memoryview
    bounds: Int64
    first: bytes
    header: Header | None
    suffix: str
    profile: LogProfile
    arrival: Int64

    @classmethod
    def read(cls, path: Path, config: LogConfig) -> "_LinesLog":
        data = _unpacked(path)
        if not data.endswith(b"\n"):
            # The pipeline that follows the segments waits for the end of the last line.
            data += b"\n"
        suffix = Path(path.name.lower().removesuffix(".gz")).suffix
        if suffix in (".csv", ".tsv"):
            lines = rows_of(data, is_tsv=suffix == ".tsv")
        else:
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
            lines = Lines(data.split(b"\n")[:-1], np.append(0, ends[:-1]))
        bounds = np.append(lines.positions, len(data)).astype(np.int64)
        first = data[: bounds[0]]
        return cls(memoryview(data), bounds, first, lines.header, suffix, *_profile(path, lines, config))

    def rows(self, start: int, stop: int) -> Lines:
        bounds = pairwise(self.bounds[start : stop + 1].tolist())
        lines = [bytes(self.data[first:end]).removesuffix(b"\n") for first, end in bounds]
        return Lines(lines, self.bounds[start:stop], header=self.header)

    def segment(self, start: int, stop: int) -> bytes:
        return self.first + self._bytes(start, stop)

    def _bytes(self, start: int, stop: int) -> bytes:
        return bytes(self.data[self.bounds[start] : self.bounds[stop]])


def _unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    if not has_ending(path.name, [".gz"]):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read to its end as gzip: {error}") from error


@dataclass(frozen=True)
class _ParquetLog:
    table: pa.Table
    profile: LogProfile
    arrival: Int64
    suffix: str = ".parquet"

    @classmethod
    def read(cls, path: Path, config: LogConfig) -> "_ParquetLog":
        try:
            table = pq.read_table(path)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{path}: is no Parquet file: {error}") from error
        return cls(table, *_profile(path, TableRows(table, np.arange(len(table))), config))

    def rows(self, start: int, stop: int) -> TableRows:
        return TableRows(self.table[start:stop], np.arange(start, stop))

    def segment(self, start: int, stop: int) -> bytes:
        buffer = io.BytesIO()
        pq.write_table(self.table.slice(start, stop - start), buffer, compression="zstd")
        return buffer.getvalue()


def _profile(path: Path, content: Lines | TableRows, config: LogConfig) -> tuple[LogProfile, Int64]:
    """Return a log's profile, and each row's arrival time: the newest event time so far, without outliers."""
    validator = Validator(config)
    times, valid = validator.event_times(content)
    if not valid.any():
        _, refused = validator.validate(Block(BlockId(path.name, 0), content))
        why = [f": {letter.detail}" for letter in refused.letters[:1]]
        raise ValueError("".join([f"{path}: no row has a valid event time", *why]))
    known = times[valid]
    low, high = np.quantile(known, [0.001, 0.999])
    reach = max(high - low, 1)
    plausible = known[(known >= low - reach) & (known <= high + reach)]
    start, end = int(plausible.min()), int(plausible.max())
    # One row dated a century ahead must not make all rows after it arrive at the end.
    steady = np.where(valid & (times >= start) & (times <= end), times, start)
    return LogProfile(len(times), start, end), np.maximum.accumulate(steady)


_PLAN = "state/replay.json"


class ReplayConfig(FrozenModel):
    """Settings of `replay`."""

    seconds: float = Field(default=120.0, gt=0, description="wall-clock seconds that the whole log takes")
    segments: int = Field(default=240, ge=1, le=99_999, description="slices of event time, each a file")


class ReplaySummary(FrozenModel):
    """Rows and segments written so far, by this run and earlier ones."""

    rows: int
    placed_rows: int
    placed_segments: int
    segments: int
    finished: bool


class _Plan(FrozenModel):
    """The stored parameters of a replay, which must be the same when it is resumed."""

    log: str
    rows: int
    segments: int


@dataclass(frozen=True)
class _Segment:
    name: str
    start: int
    stop: int
    due_ms: float


def replay(
    path: Path,
    folder: Store,
    store: Store,
    config: ReplayConfig | None = None,
    *,
    report: Callable[[ReplaySummary], None] | None = None,
    log_config: LogConfig | None = None,
) -> ReplaySummary:
    """Write the rows of the log at `path` as segments into `folder`, each when it is due.

    The clock that relates event time to wall-clock time (`EventClock`) is saved in `store`. `log_config` has the log's
    column names and time format. `report` is called with the summary so far.

    Raises
    ------
    ValueError
        If `store` holds a replay of another log, or one with other slices.
    """
    config = config or ReplayConfig()
    source = open_log(path, log_config)
    if not check_plan(store, path, source.profile.rows, config.segments):
        plan = _Plan(log=str(path.resolve()), rows=source.profile.rows, segments=config.segments)
        store.write(_PLAN, plan.model_dump_json(indent=2).encode())
    segments = _cut(source, config.segments)
    missing = [segment for segment in segments if not folder.exists(segment.name)]
    clock = _start_clock(source, missing, config) if missing else EventClock.of(store)
    clock.save(store)
    log.info("replaying %s: %s; %d of %d segments to place", path, source.profile, len(missing), len(segments))
    summary = _summarise(source, segments, missing, placed=0)
    for number, segment in enumerate(missing, start=1):
        time.sleep(max(0.0, clock.wall_time(round(segment.due_ms)) - time.time()))
        folder.write(segment.name, source.segment(segment.start, segment.stop))
        summary = _summarise(source, segments, missing, placed=number)
        if report:
            report(summary)
    log.info("replay finished: %d rows in %d segments", source.profile.rows, len(segments))
    return summary


def _cut(source: LogSource, slices: int) -> list[_Segment]:
    """Cut a log into equal slices of event time, and return the non-empty slices as segments."""
    profile = source.profile
    edges = profile.start_ms + (profile.end_ms - profile.start_ms) * np.arange(1, slices + 1) / slices
    stops = np.searchsorted(source.arrival, edges, side="left")
    stops[-1] = profile.rows
    starts = np.concatenate([[0], stops[:-1]])
    return [
        _Segment(f"segment-{number:05d}{source.suffix}", int(start), int(stop), float(edge))
        for number, (start, stop, edge) in enumerate(zip(starts, stops, edges, strict=True))
        if stop > start
    ]


def _start_clock(source: LogSource, missing: list[_Segment], config: ReplayConfig) -> EventClock:
    """Return a clock by which the slice of the first missing segment starts now."""
    profile = source.profile
    span = max(profile.end_ms - profile.start_ms, 1) / 1000
    origin = max(profile.start_ms / 1000, missing[0].due_ms / 1000 - span / config.segments)
    return EventClock(
        event_origin=origin, wall_origin=time.time(), speed=span / config.seconds, event_end=profile.end_ms / 1000
    )


def _summarise(source: LogSource, segments: list[_Segment], missing: list[_Segment], *, placed: int) -> ReplaySummary:
    left = missing[placed:]
    return ReplaySummary(
        rows=source.profile.rows,
        placed_rows=source.profile.rows - sum(segment.stop - segment.start for segment in left),
        placed_segments=len(segments) - len(left),
        segments=len(segments),
        finished=not left,
    )


def planned_log(store: Store) -> Path | None:
    """Return the path of the log that is replayed into a store; None without a replay."""
    plan = _earlier(store)
    return None if plan is None else Path(plan.log)


def _earlier(store: Store) -> _Plan | None:
    return _Plan.model_validate_json(store.read(_PLAN)) if store.exists(_PLAN) else None


def check_plan(store: Store, path: Path, rows: int, segments: int) -> bool:
    """Return whether a store holds this replay, in part or whole; raises `ValueError` if it holds another replay."""
    earlier, plan = _earlier(store), _Plan(log=str(path.resolve()), rows=rows, segments=segments)
    if earlier is None:
        return False
    if earlier != plan:
        raise ValueError(
            f"{store.path('')} holds a replay of {earlier.log} ({earlier.rows} rows in {earlier.segments} slices), "
            f"not of {plan.log} ({plan.rows} rows in {plan.segments} slices): choose another --store, or remove it"
        )
    return True
