"""Metrics and summaries of the pipeline, derived from commits, dead letters and topics.

The driver cannot see into the workers of a distributed runner; it sees what they commit.
"""

import logging
import math
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from pydantic import Field

from weir.contracts import (
    Commit,
    CorruptArtefactError,
    EventClock,
    ExposureCounts,
    LogState,
    SourceSpan,
    Store,
    WindowCounts,
    WindowLog,
    WindowManifest,
)
from weir.contracts.base import columns
from weir.contracts.base.models import FrozenModel
from weir.pipelines.config import PipelineConfig
from weir.readers import Reason
from weir.sketches import Counted, head_distance, health, load, unseen_share

__all__ = [
    "REASONS",
    "Awaited",
    "Drift",
    "IngestSummary",
    "PipelineMetrics",
    "RecentItems",
    "TopicMetrics",
    "awaited_window",
]

logger = logging.getLogger(__name__)

REASONS: Final = ("deleted", "truncated")
"""Why a partition stops: the broker deleted uncommitted messages, or lost committed ones."""
_HOUR_MS: Final = 3_600_000
_FIRST_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 60.0
_LONGEST_SECONDS: Final = 960.0
_COMPARED = 16
"""Earlier panes to read at the start, to compare the first window with."""
_COMMIT_SECONDS = (0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800)
_NOTHING: Final = Counted(np.empty(0, np.int64), np.empty(0, np.int64))


class TopicMetrics:
    """The metrics of one topic; they keep their initial values if the log is not a topic."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.away = Gauge(
            "weir_pipeline_brokers_away",
            "1 while no Kafka broker answers; nothing is committed then.",
            registry=registry,
        )
        self.stopped = Gauge(
            "weir_pipeline_stopped_partitions",
            "Partitions of the topic that are not read, because messages are gone from the broker, by reason.",
            ["reason"],
            registry=registry,
        )
        self.unread = Gauge(
            "weir_pipeline_unread_offsets",
            "Offsets between what was read and the end, by partition of the topic.",
            ["partition"],
            registry=registry,
        )
        self.lost = Counter(
            "weir_pipeline_lost_offsets_total",
            "Offsets that were passed over unread, because the broker had no messages there any more (accept_gap).",
            registry=registry,
        )
        self.skipped = Counter(
            "weir_pipeline_valueless_messages_total",
            "Messages without a value (tombstones of a compacted topic), which are no events.",
            registry=registry,
        )
        self._skipped: dict[str, int] = {}
        self.stop(())

    def stop(self, reasons: Iterable[str]) -> None:
        """Set the number of stopped partitions by reason; `reasons` has one entry per partition."""
        counts = Tally(reasons)
        for reason in REASONS:
            self.stopped.labels(reason).set(counts[reason])

    def started(self, spans: Mapping[str, SourceSpan]) -> None:
        """Set the baseline: messages that the commits before this process have counted are not counted again."""
        self._skipped = {key: span.skipped for key, span in spans.items()}

    def observe(self, spans: Mapping[str, SourceSpan]) -> None:
        """Count the messages in the spans of a commit."""
        for key, span in spans.items():
            self.skipped.inc(span.skipped - self._skipped.get(key, 0))
            self._skipped[key] = span.skipped


class Drift(NamedTuple):
    """How the newest window differs from the windows before: NaN without windows before.

    `distance` (0 to 1) compares the frequent items with the last window before, `unseen` is the share of events on
    items that no window before has.
    """

    distance: float
    unseen: float


class RecentItems:
    """Item counts of the newest window by event time and of the windows before it, summed over panes.

    The constructor reads the panes after sequence `after`. "Before" are the windows that start up to an hour, or one
    window length if that is longer, before the newest one; after a longer gap, only the last one.
    """

    def __init__(self, log: WindowLog, after: int = -1) -> None:
        self._log = log
        self._windows: dict[int, Counted] = {}
        self.add(log.committed(log.left(after)))

    def add(self, manifests: Sequence[WindowManifest]) -> None:
        """Add panes, in any order of event time; skips damaged ones with a warning."""
        starts = sorted({*self._windows, *(manifest.start_ms for manifest in manifests)})
        if not starts:
            return
        lookback = max([_HOUR_MS, *(manifest.end_ms - manifest.start_ms for manifest in manifests[-1:])])
        kept = {start for start in starts if start >= starts[-1] - lookback} | set(starts[-2:])
        self._windows = {start: counted for start, counted in self._windows.items() if start in kept}
        for manifest in manifests:
            if manifest.start_ms in kept:
                self._add_pane(manifest)

    def drift(self) -> Drift:
        """Compare the newest window with the windows before it."""
        *earlier, newest = [self._windows[start] for start in sorted(self._windows)] or [_NOTHING]
        before = _sum(earlier)
        if not len(before.keys):
            return Drift(float("nan"), float("nan"))
        return Drift(head_distance(earlier[-1], newest), unseen_share(newest, before.keys))

    def _add_pane(self, manifest: WindowManifest) -> None:
        try:
            items = self._log.items(manifest)
        except CorruptArtefactError as error:
            logger.warning("left out of the drift: %s", error)
            return
        pane = Counted(items[columns.ITEM_KEY].to_numpy(), items[columns.COUNT].to_numpy())
        start = manifest.start_ms
        self._windows[start] = _sum([self._windows[start], pane]) if start in self._windows else pane


def _sum(parts: Sequence[Counted]) -> Counted:
    """Return the summed counts of each key."""
    keys = np.concatenate([_NOTHING.keys, *(part.keys for part in parts)])
    counts = np.concatenate([_NOTHING.counts, *(part.counts for part in parts)])
    distinct, place = np.unique(keys, return_inverse=True)
    return Counted(distinct, np.bincount(place, weights=counts, minlength=len(distinct)))


class IngestSummary(FrozenModel):
    """What one run, or all runs since the start, committed."""

    read: int = Field(default=0, description="rows accounted for: valid, duplicates, ignored and dead")
    valid: int = Field(default=0, description="distinct valid events committed")
    dead: int = Field(default=0, description="rows refused")
    refused: dict[str, int] = Field(default={}, description="rows refused, by reason")
    duplicates: int = Field(default=0, description="events dropped because their event_id was known")
    late: int = Field(default=0, description="of the valid: came after their window was committed")
    ignored: int = Field(default=0, description="events of ignored types")
    windows: int = Field(default=0, description="windows committed for the first time")
    panes: int = Field(default=0, description="commits")
    runs: int = Field(default=0, description="pipeline runs")
    seconds: float = Field(default=0.0, description="wall time of the runs, seconds")

    @classmethod
    def of(cls, commit: Commit | None, seconds: float) -> "IngestSummary":
        """Summarise one run."""
        if commit is None:
            return cls(runs=1, seconds=seconds)
        counts = sum((pane.counts for pane in commit.panes), WindowCounts())
        dead = sum(file.rows for file in commit.letters)
        return cls(
            read=counts.events + counts.duplicates + counts.ignored + dead,
            valid=counts.events,
            dead=dead,
            refused=dict(sum((Tally(file.reasons) for file in commit.letters), Tally())),
            duplicates=counts.duplicates,
            late=counts.late,
            ignored=counts.ignored,
            windows=sum(pane.pane == 0 for pane in commit.panes),
            panes=len(commit.panes),
            runs=1,
            seconds=seconds,
        )

    def __add__(self, other: "IngestSummary") -> "IngestSummary":
        mine, theirs = self.model_dump(), other.model_dump()
        refused = Tally(mine.pop("refused")) + Tally(theirs.pop("refused"))
        return IngestSummary(**{name: mine[name] + theirs[name] for name in mine}, refused=dict(refused))


@dataclass
class Awaited:
    """Logs what the pipeline waits for: after 2 s, then at intervals of 1, 2, 4, ... 16 minutes without a commit."""

    clock: Callable[[], float] = time.monotonic
    _next: float = field(init=False)
    _pause: float = field(default=_AGAIN_SECONDS, init=False)

    def __post_init__(self) -> None:
        self._next = self.clock() + _FIRST_SECONDS

    def over(self) -> None:
        """Restart the intervals, after a commit or while nothing waits."""
        self._pause = _AGAIN_SECONDS
        self._next = max(self._next, self.clock() + self._pause)

    def say(self, sentence: Callable[[], str]) -> None:
        """Log the sentence if it is due."""
        if (now := self.clock()) < self._next:
            return
        logger.info("%s", sentence())
        self._next, self._pause = now + self._pause, min(2 * self._pause, _LONGEST_SECONDS)


def awaited_window(config: PipelineConfig, start_ms: int, watermark_ms: int, holder: str = "") -> str:
    """Return a sentence that says when the window that starts at `start_ms` is committed.

    `holder` names the partition with the lowest watermark, if partitions have their own. Times are event times in UTC.
    """
    end_ms = start_ms + config.window_ms
    late, idle = config.allowed_lateness_seconds, config.idle_seconds
    whose = f"the watermark of {holder}" if holder else "the watermark"
    return (
        f"the window from {_moment(start_ms)} to {_moment(end_ms)} is committed when {whose}, the newest event less "
        f"{late} s of lateness, passes its end, or after {idle:g} s without input; it is at {_moment(watermark_ms)}"
    )


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


class PipelineMetrics:
    """The metrics of one pipeline process."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.events = Counter(
            "weir_pipeline_events_total",
            "Distinct valid events in committed windows, by label.",
            ["label"],
            registry=registry,
        )
        self.ignored = Counter(
            "weir_pipeline_ignored_events_total", "Valid events of types that are ignored.", registry=registry
        )
        self.dead = Counter(
            "weir_pipeline_dead_letters_total", "Rows refused, by reason.", ["reason"], registry=registry
        )
        # Start every series at 0: a rate would miss the first refusals of a series that starts at 1.
        for reason in Reason:
            self.dead.labels(reason)
        self.duplicates = Counter(
            "weir_pipeline_duplicates_total", "Events dropped because their event_id was known.", registry=registry
        )
        self.rewritten = Counter(
            "weir_pipeline_rewritten_files_total",
            "Files of the log that were rewritten under their name, and read again from their start.",
            registry=registry,
        )
        self.late = Counter(
            "weir_pipeline_late_events_total", "Events that came after their window was committed.", registry=registry
        )
        self.clicks = Counter(
            "weir_pipeline_exposure_clicks_total",
            "Positives with an attribution token, by what came of joining them with their list at the commit.",
            ["outcome"],
            registry=registry,
        )
        for outcome in ExposureCounts().clicks:
            self.clicks.labels(outcome)
        self.exposed = Counter(
            "weir_pipeline_exposed_items_total",
            "Items in committed examples that were shown beside a positive and not chosen.",
            registry=registry,
        )
        self.unknown_histories = Counter(
            "weir_pipeline_unknown_histories_total",
            "Late events with an empty history, because what was before them is no longer known.",
            registry=registry,
        )
        self.commit = Histogram(
            "weir_pipeline_window_commit_seconds",
            "Seconds from the start of a run to the commit of each of its windows.",
            registry=registry,
            buckets=_COMMIT_SECONDS,
        )
        self.items = Gauge(
            "weir_pipeline_window_distinct_items", "Distinct items of the newest commit.", registry=registry
        )
        self.fill = Gauge(
            "weir_pipeline_sketch_fill_ratio", "Share of non-zero cells in the newest sketch.", registry=registry
        )
        self._add_progress(registry)
        self._add_sketches(registry)
        self.topic = TopicMetrics(registry)
        self._recent: RecentItems | None = None

    def _add_progress(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"weir_pipeline_{name}", text, registry=registry)

        self.input = gauge("input_timestamp_seconds", "When the log was last seen to have grown, Unix time.")
        self.sequence = gauge("window_sequence", "Number of the newest pane, -1 before the first.")
        self.watermark = gauge("watermark_timestamp_seconds", "Newest event time committed, Unix time.")
        self.watermark_wall = gauge(
            "watermark_wall_timestamp_seconds",
            "When the newest event committed happened by the wall clock, Unix time; it differs for a replay only.",
        )
        self.window_open = gauge(
            "window_open_seconds", "Wall time for which a window stays open: its length and the allowed lateness."
        )

    def _add_sketches(self, registry: CollectorRegistry) -> None:
        # The trainer exports the same metrics with scope "view".
        def gauge(name: str, text: str) -> Gauge:
            scoped = Gauge(f"weir_sketch_{name}", text, ["scope"], registry=registry)
            for scope in ("window", "window_users"):
                scoped.labels(scope).set(math.nan)
            return scoped

        self.sketches = {
            "fill": gauge("fill_ratio", "Share of cells in use, newest sketch."),
            "distinct": gauge("distinct_keys", "Distinct ids counted, estimated from the newest sketch itself."),
            "log_q_error": gauge(
                "log_q_error_nats", "Mean error of log Q over events that collisions cause, estimated from phantom ids."
            ),
        }
        self.drift = Gauge(
            "weir_sketch_drift_distance",
            "Jensen-Shannon distance of the newest window's frequent items from the window before, 0 to 1.",
            registry=registry,
        )
        self.unseen = Gauge(
            "weir_sketch_unseen_events_ratio",
            "Share of the newest window's events on items that the window, or the hour, before did not have.",
            registry=registry,
        )
        self.drift.set(math.nan)
        self.unseen.set(math.nan)

    def started(self, store: Store, config: PipelineConfig, state: LogState) -> None:
        """Set the metrics of a pipeline that starts at this state of a store."""
        self._open_ms = 1000 * config.open_seconds
        self._progress(EventClock.of(store), state)
        self.topic.started(state.sources)

    def observe(self, store: Store, commit: Commit, state: LogState, started: float) -> None:
        """Add a commit, with the state after it and the start of its run (wall clock, s)."""
        for file in commit.letters:
            for reason, count in file.reasons.items():
                self.dead.labels(reason).inc(count)
        self.topic.observe(commit.sources)
        for pane in commit.panes:
            self.events.labels("positive").inc(pane.counts.positives)
            self.events.labels("negative").inc(pane.counts.negatives)
            self.ignored.inc(pane.counts.ignored)
            self.duplicates.inc(pane.counts.duplicates)
            self.late.inc(pane.counts.late)
            self.unknown_histories.inc(pane.counts.unknown_histories)
            self.exposed.inc(pane.exposure.items)
            for outcome, clicks in pane.exposure.clicks.items():
                self.clicks.labels(outcome).inc(clicks)
            self.commit.observe(max(0.0, pane.committed_at - started))
        if commit.panes:
            self._progress(EventClock.of(store), state)
            self._newest(WindowLog(store), commit.panes)

    def _progress(self, clock: EventClock, state: LogState) -> None:
        happened = clock.wall_time(max(state.max_event_ms, 0))
        self.window_open.set(clock.wall_time(max(state.max_event_ms, 0) + self._open_ms) - happened)
        self.sequence.set(state.cursor.sequence - 1)
        if state.cursor.sequence:
            self.watermark.set(state.max_event_ms / 1000)
            self.watermark_wall.set(happened)

    def _newest(self, log: WindowLog, commits: Sequence[WindowManifest]) -> None:
        newest = commits[-1]
        self.items.set(newest.file(newest.name.items()).rows)
        sketches = {"window": log.sketch(newest), "window_users": log.user_sketch(newest)}
        measured = {scope: health(load(data)) for scope, data in sketches.items()}
        for scope, found in measured.items():
            for name, gauge in self.sketches.items():
                gauge.labels(scope).set(getattr(found, name))
        self.fill.set(measured["window"].fill)
        self._compare(log, commits)

    def _compare(self, log: WindowLog, commits: Sequence[WindowManifest]) -> None:
        if self._recent is None:
            self._recent = RecentItems(log, after=max(-1, commits[0].sequence - 1 - _COMPARED))
        else:
            self._recent.add(commits)
        distance, unseen = self._recent.drift()
        self.drift.set(distance)
        self.unseen.set(unseen)
