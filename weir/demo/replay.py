"""Replay a finished log faster than real time: its rows appear as segment files, in order, each when it is due.

The log is cut by event time into slices of equal length. A slice becomes one segment, written atomically when it is
due, so that a reader sees whole segments only, and their concatenation is the log. Names are derived from the slices: a
replay that was killed continues after its last segment.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field

from weir.contracts import EventClock, Store
from weir.contracts.models import FrozenModel
from weir.demo.source import LogSource, open_log
from weir.readers import LogConfig

__all__ = ["ReplayConfig", "ReplaySummary", "check_plan", "planned_log", "replay"]

log = logging.getLogger(__name__)

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
    """Parameters that a resumed replay must keep, so that its segments still make up the log."""

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
    """Write the rows of the log at `path` into `folder` when they are due, and save the `EventClock` in `store`.

    `log_config` has the log's column names and time format.

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
    """Return the non-empty segments; slice i ends at start + (i + 1) / slices of the span."""
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
    """Return a clock in which the slice of the next segment starts now."""
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
    """Return whether a store already holds this replay, in part or whole; raises `ValueError` if it holds another."""
    earlier, plan = _earlier(store), _Plan(log=str(path.resolve()), rows=rows, segments=segments)
    if earlier is None:
        return False
    if earlier != plan:
        raise ValueError(
            f"{store.path('')} holds a replay of {earlier.log} ({earlier.rows} rows in {earlier.segments} slices), "
            f"not of {plan.log} ({plan.rows} rows in {plan.segments} slices): choose another --store, or remove it"
        )
    return True
