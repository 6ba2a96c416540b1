"""The unbounded driver: submits a Flink job that reads a topic, watches the job, and maintains the store.

The workers of the job commit beside the driver. On a local disk one process at a time has the lock; on an object store
the slower writer reads again. Exact counting rests on the commits alone, so the driver may be killed at any moment: its
job continues, and the next driver replaces the job.
"""

import copy
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Final, TypeVar

from prometheus_client import REGISTRY, CollectorRegistry, Gauge
from pydantic import JsonValue

from weir.contracts import CommitLog, CommitTakenError, EventClock, LogState, Store, UserError
from weir.pipelines.config import PipelineConfig
from weir.pipelines.histories.compaction import HistoryKeeper
from weir.pipelines.kafka_config import BrokerAwayError
from weir.pipelines.layout import open_layout, with_window
from weir.pipelines.maintenance.cleanup import Erasure
from weir.pipelines.maintenance.retention import Retention
from weir.pipelines.metrics import Awaited, IngestSummary, PipelineMetrics, awaited_window
from weir.pipelines.runs.run_registry import BusyStoreError, check_writable, only_driver, only_writer, started_at, sweep
from weir.pipelines.sources.kafka.client import KafkaPartition
from weir.pipelines.sources.kafka.source import TopicSource
from weir.pipelines.sources.plan import InHand
from weir.pipelines.sources.source import check_home
from weir.pipelines.store_settings import check_unchanged, settled
from weir.pipelines.stream.config import StreamConfig
from weir.pipelines.stream.flink_client import FlinkClient, job_name
from weir.pipelines.stream.flink_job import FlinkJob, JobEndedError, commit_starts, sources, submit
from weir.pipelines.stream.flink_metrics import FlinkMetrics
from weir.readers import is_topic
from weir.runtime.metrics_server import exposed
from weir.runtime.stopping import ended_by_signals

__all__ = ["NoTopicError", "Standstill", "Upkeep", "stream"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SWEEP_SECONDS: Final = 600.0
_GONE: Final = {"finished", "missing"}
"""States after which another job can continue: all partitions have ended, or Flink has forgotten the job."""
_BROKEN: Final = {"failed", "canceled"}
_ENDING_SECONDS: Final = 30.0
"""Time for readers to notice that their topic is gone, and for their last windows."""
_OPEN_WINDOWS: Final = 2
"""Longest wait for a commit, in lengths of an open window; `_START_SECONDS` are added for the job's start."""
_START_SECONDS: Final = 60.0


@dataclass
class Upkeep:
    """Maintains the store beside a job: compaction, retention, erasure and removal of killed runs' files.

    `state` belongs to the upkeep alone, and catches up with the commits before each step.
    """

    store: Store
    config: PipelineConfig
    state: LogState
    _next_sweep: float = field(default=-math.inf, init=False)

    def __post_init__(self) -> None:
        self._log = CommitLog(self.store)
        self._histories = HistoryKeeper(self.store, self.config, self.state)
        days = self.config.retention_days
        self._retention = None if days is None else Retention(self.store, 86_400 * days)
        self._erasure = Erasure(self.store, 86_400 * self.config.erasure_days, (self.config.cache,))

    def begin(self) -> None:
        """Remove killed runs' files and repair histories; call before a job of this driver runs."""
        with only_writer(self.store):
            self.state.catch_up(self._log)
            check_home(self.store, self.state)
            sweep(self.store)
            self._next_sweep = time.monotonic() + _SWEEP_SECONDS
            self._histories.repair()

    def mend(self, failure: str) -> bool:
        """Rebuild the histories whose files a worker's failure message names; False if the store was locked."""
        try:
            with only_writer(self.store):
                self.state.catch_up(self._log)
                self._histories.mend(failure)
        except (BusyStoreError, CommitTakenError):
            return False
        return True

    def step(self, partitions: set[str]) -> None:
        """Do the maintenance that is due, unless a worker is committing; `partitions` are the topic's keys."""
        try:
            with only_writer(self.store):
                self.state.catch_up(self._log)
                self._histories.keep()
                if self._retention is not None and self._retention.is_due:
                    self._retention.step(self.state, partitions)
                self._erasure.step(self.state)
                if time.monotonic() >= self._next_sweep:
                    self._next_sweep = time.monotonic() + _SWEEP_SECONDS
                    # By age: a merge of this process may be running.
                    sweep(self.store, by_age=True)
                self.state.save(self._log)
        except (BusyStoreError, CommitTakenError):
            # The next step catches up.
            return

    def end(self) -> None:
        """Cancel the running merge of histories."""
        self._histories.end()


class NoTopicError(UserError):
    """The log in the settings is not a topic."""

    hint = "`weir ingest --follow` reads files"


def stream(
    store: Store,
    config: PipelineConfig,
    settings: StreamConfig,
    *,
    report: Callable[[IngestSummary], None] | None = None,
    registry: CollectorRegistry = REGISTRY,
    stop: threading.Event | None = None,
    named: Mapping[str, JsonValue] | None = None,
) -> IngestSummary:
    """Stream the topic into the store until `stop` is set or SIGTERM or SIGINT arrives.

    Returns the sum of the commits; `report` is called with each. At the end the job is cancelled, and the next one
    reads its uncommitted messages again. `config` and `named` are as for `ingest`. Raises `NoTopicError`;
    `LayoutError`, `BusyStoreError` and `MovedStoreError` as `ingest` does; `FlinkAwayError` and `EngineError` if Flink
    does not take the job; and `JobEndedError` if the job fails or is cancelled elsewhere.
    """
    if not is_topic(config.log):
        raise NoTopicError(f"pipeline.log is {config.log}, but a stream reads a topic: kafka://host:port/topic")
    if store.local_path is not None:
        # Workers have another working directory.
        store = Store(str(store.local_path.absolute()))
    stop = stop or threading.Event()
    config = with_window(store, settled(store, config), follow=True)
    metrics_server = exposed(registry, config.metrics_host, config.metrics_port)
    with ended_by_signals(stop), only_driver(store), metrics_server:
        driver = _Driver(store, config, settings, registry, report, stop, named)
        try:
            driver.run()
        finally:
            driver.upkeep.end()
    return driver.total


@dataclass
class Standstill:
    """Detects that commits have stopped while the topic has uncommitted messages, and logs the reason once.

    The gauge `since` shows when the standstill began (wall clock, s), NaN without a standstill. The reason is logged
    after `patience_seconds`.
    """

    since: Gauge
    patience_seconds: float
    _since: float | None = field(default=None, init=False)
    _is_told: bool = field(default=False, init=False)

    def moved(self) -> None:
        """Record a commit."""
        if self._is_told:
            logger.warning("commits follow again")
        self._since, self._is_told = None, False
        self.since.set(math.nan)

    def look(self, unread: int, why: Callable[[], str]) -> None:
        """Record the number of uncommitted messages; `why` returns the reason for the log."""
        if not unread:
            self.moved()
            return
        now = time.time()
        self._since = self._since or now
        self.since.set(self._since)
        if not self._is_told and now - self._since > self.patience_seconds:
            logger.error("no commit for %.0f s, and %d messages are in none: %s", now - self._since, unread, why())
            self._is_told = True


@dataclass
class _Driver:
    """Runs one job after another: a restart is exact, so every change of the topic is handled by a new job."""

    store: Store
    config: PipelineConfig
    settings: StreamConfig
    registry: CollectorRegistry
    report: Callable[[IngestSummary], None] | None
    stop: threading.Event
    named: InitVar[Mapping[str, JsonValue] | None] = None
    total: IngestSummary = field(default_factory=IngestSummary, init=False)
    _waits: bool = field(default=False, init=False)
    _gone_since: float | None = field(default=None, init=False)
    _awaited: Awaited = field(default_factory=Awaited, init=False)

    def __post_init__(self, named: Mapping[str, JsonValue] | None) -> None:
        self._metrics = PipelineMetrics(self.registry)
        self._source = TopicSource.open(self.config, self._metrics.topic)
        open_layout(self.store, self.config, named)
        check_writable(self.store)
        self._log, self._state = CommitLog(self.store), LogState.open(self.store)
        self._source.check(self.store, self._state)
        # A separate state: upkeep reads commits before their metrics are shown.
        self.upkeep = Upkeep(self.store, self.config, copy.deepcopy(self._state))
        self._name = job_name(self.store)
        self._metrics.started(self.store, self.config, self._state)
        client = FlinkClient(self.settings.flink_rest)
        metrics = FlinkMetrics(self.registry)
        self._job = FlinkJob(client, self._name, metrics)
        window_ms = self.config.window_ms + 1000 * self.config.allowed_lateness_seconds
        open_seconds = window_ms / 1000 / EventClock.of(self.store).speed
        self._standstill = Standstill(metrics.uncommitted, _OPEN_WINDOWS * open_seconds + _START_SECONDS)

    def run(self) -> None:
        """Run jobs until `stop` is set; the last one is cancelled."""
        self._job.cancel_others()
        self.upkeep.begin()
        while not self.stop.is_set():
            listed = self._or_wait(self._source.discover)
            if not listed or not self._or_wait(partial(self._submit, listed)):
                self.stop.wait(self.settings.watch_seconds)
                continue
            try:
                self._watch(listed)
            finally:
                self._job.cancel()
                self._follow()

    def _submit(self, listed: list[KafkaPartition]) -> bool:
        """Start a job from the committed offsets; False if every partition is stopped."""
        commit_starts(self.store, self._source, self.upkeep.state, listed)
        self._follow()
        partitions = self._source.identify(listed, self._state, InHand())
        if not partitions:
            return False
        read = sources(partitions, self._state, self.config, self.settings, EventClock.of(self.store))
        for source in read:
            logger.info("%s is read from offset %d", source.reading.partition.name, source.reading.start)
        submit(self.store, self.config, self.settings, read, self._name)
        self._job.appear()
        return True

    def _watch(self, listed: list[KafkaPartition]) -> None:
        """Watch the job until another one must replace it; raises `JobEndedError`."""
        self._gone_since, mended = None, ""
        while not self.stop.wait(self.settings.watch_seconds):
            state = self._job.state()
            self._follow()
            if state in _BROKEN:
                raise JobEndedError(
                    f"the job was {state}, and not by this driver: Flink says why; start it again to go on"
                )
            if state in _GONE:
                logger.warning("the job is %s: another one goes on at the commits", state)
                return
            if self._job.flaw:
                logger.error("%s: another job goes on at the commits", self._job.flaw)
                return
            if self._job.failure != mended and self.upkeep.mend(self._job.failure):
                mended = self._job.failure
            self.upkeep.step({one.key for one in listed})
            now = self._or_wait(self._source.discover)
            if now is not None and self._needs_another(listed, now):
                return

    def _needs_another(self, listed: list[KafkaPartition], now: list[KafkaPartition]) -> bool:
        """Return whether the topic has changed so that a new job is needed; updates the lag metrics."""
        if {one.topic_id for one in now} != {one.topic_id for one in listed}:
            return self._has_committed_all(listed)
        read = {key: span.stop for key, span in self._state.sources.items()}
        identified = self._source.identify(now, self._state, InHand(reached=read))
        behind = {one.number: max(0, one.size - read.get(one.key, one.size)) for one in identified}
        for number, messages in behind.items():
            self._metrics.topic.unread.labels(str(number)).set(messages)
        unread = sum(behind.values())
        self._say_awaited(unread)
        self._standstill.look(unread, lambda: self._job.obstacle)
        if new := {one.key for one in now} - {one.key for one in listed}:
            logger.info("the topic has %d more partitions: another job reads them, too", len(new))
            return True
        lost = [self._state.sources[key] for key in self._source.stopped]
        # A new start is committed between two jobs, after everything read of the partition is committed.
        return bool(lost) and self.config.kafka.accept_gap and all(span.is_done for span in lost)

    def _say_awaited(self, unread: int) -> None:
        """Log at growing intervals which window the uncommitted offsets wait for."""
        if not unread:
            self._awaited.over()
            return
        marks, window_ms = self._job.watermarks_ms, self.config.window_ms
        if not marks:
            self._awaited.say(lambda: f"{unread:,} offsets are in no commit, and the job has read none of them yet")
            return
        lowest = min(marks, key=lambda number: marks[number])
        watermark_ms = int(marks[lowest])
        start_ms, holder = watermark_ms // window_ms * window_ms, f"partition {lowest}"
        waiting = f"{unread:,} offsets are in no commit: "
        self._awaited.say(lambda: waiting + awaited_window(self.config, start_ms, watermark_ms, holder))

    def _has_committed_all(self, listed: list[KafkaPartition]) -> bool:
        """Return whether the job of a re-created topic has committed all that it has read.

        The brokers no longer have these messages. The readers end, so all their windows complete; Flink keeps the job
        running.
        """
        if self._gone_since is None:
            logger.warning("the topic was created again: another job reads it when all of the old one is committed")
            self._gone_since = time.monotonic()
        done = all(self._state.sources[one.key].is_done for one in listed if one.key in self._state.sources)
        return done and time.monotonic() - self._gone_since >= _ENDING_SECONDS

    def _or_wait(self, request: Callable[[], T]) -> T | None:
        """Return the result of `request`; None while brokers do not answer or the topic does not exist."""
        try:
            answer = request()
        except (BrokerAwayError, FileNotFoundError) as error:
            if not self._waits:
                logger.warning("%s; waiting", error)
            self._waits = True
            return None
        if self._waits:
            logger.warning("%s can be read now", self.config.log)
        self._waits = False
        return answer

    def _follow(self) -> None:
        """Read new commits, and update metrics and totals."""
        before = {key: span.stop for key, span in self._state.sources.items()}
        for commit in self._state.catch_up(self._log):
            self._metrics.observe(self.store, commit, self._state, started_at(commit.writer))
            summary = IngestSummary.of(commit, 0.0)
            self.total += summary
            if summary.panes:
                self._awaited.over()
                logger.info("commit %d: %d events in %d panes", commit.number, summary.valid, summary.panes)
            if self.report is not None:
                self.report(summary)
            if not (summary.panes or commit.sources):
                # It may be the commit that a change of settings makes.
                check_unchanged(self.store, self.config)
        if any(span.stop > before.get(key, -1) for key, span in self._state.sources.items()):
            self._metrics.input.set(time.time())
            self._standstill.moved()
