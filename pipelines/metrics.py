"""What the pipeline reports to Prometheus, derived after each run from its commits and dead letters.

Workers of a distributed runner are invisible to the driver; what they have committed is not.
"""

import math
from collections.abc import Sequence

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from weir.contracts import Commit, EventClock, ExposureCounts, LogState, Store, WindowLog, WindowManifest
from weir.pipelines.config import PipelineConfig
from weir.pipelines.drift import RecentItems
from weir.pipelines.kafka.metrics import TopicMetrics
from weir.readers import Reason
from weir.sketches import health, load

__all__ = ["PipelineMetrics"]

_COMPARED = 16
"""Earlier panes that a pipeline reads at its start, to have something to compare the first window with."""
_COMMIT_SECONDS = (0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800)


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
        # A series that starts at 1 has never risen: rates would miss the first refusals.
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
        # The trainer has the first three, too, of scope "view".
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
        """Show where a pipeline is that starts on a store with these commits."""
        self._open_ms = 1000 * config.open_seconds
        self._progress(EventClock.of(store), state)
        self.topic.started(state.sources)

    def observe(self, store: Store, commit: Commit, state: LogState, started: float) -> None:
        """Add a commit, the state after it, and when its run started (wall clock)."""
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
