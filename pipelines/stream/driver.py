"""The unbounded driver: it has an engine read a topic, watches it, and maintains the store meanwhile.

Workers commit beside it. On a local disk one has the lock at a time; on an object store whoever is late reads again.

All that is exact happens in the workers, by the commits. The driver may be killed at any moment: its job goes on, and
the next driver replaces it.
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
from weir.pipelines.stream.flink import FlinkClient, job_name
from weir.pipelines.stream.flink_metrics import FlinkMetrics
from weir.pipelines.stream.job import FlinkJob, JobEndedError, commit_starts, sources, submit
from weir.readers import is_topic
from weir.runtime.metrics_server import exposed
from weir.runtime.stopping import ended_by_signals

__all__ = ["NoTopicError", "Standstill", "Upkeep", "stream"]


_SWEEP_SECONDS: Final = 600.0


@dataclass
class Upkeep:
    """Called by the driver now and then; `state` is its own, and is caught up with the commits before each step."""

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
        """Do what must be done before anything is read; no worker of this driver runs yet."""
        with only_writer(self.store):
            self.state.catch_up(self._log)
            check_home(self.store, self.state)
            sweep(self.store)
            self._next_sweep = time.monotonic() + _SWEEP_SECONDS
            self._histories.repair()

    def mend(self, failure: str) -> bool:
        """Build the histories whose files a failure of a worker names; False while somebody else commits."""
        try:
            with only_writer(self.store):
                self.state.catch_up(self._log)
                self._histories.mend(failure)
        except (BusyStoreError, CommitTakenError):
            return False
        return True

    def step(self, partitions: set[str]) -> None:
        """Do what is due, unless a window is being committed right now; `partitions` are the keys of the topic."""
        try:
            with only_writer(self.store):
                self.state.catch_up(self._log)
                self._histories.keep()
                if self._retention is not None and self._retention.is_due:
                    self._retention.step(self.state, partitions)
                self._erasure.step(self.state)
                if time.monotonic() >= self._next_sweep:
                    self._next_sweep = time.monotonic() + _SWEEP_SECONDS
                    # A merge of this process is under way, perhaps.
                    sweep(self.store, by_age=True)
                self.state.save(self._log)
        except (BusyStoreError, CommitTakenError):
            # The next step catches up.
            return

    def end(self) -> None:
        """Give up what is being merged."""
        self._histories.end()


logger = logging.getLogger(__name__)

T = TypeVar("T")

_GONE: Final = {"finished", "missing"}
"""The job is over, and another one can go on: all its partitions have ended, or Flink has forgotten it."""
_ENDING_SECONDS: Final = 30.0
"""Time for readers to find that their topic is gone, and for their last windows."""
_BROKEN: Final = {"failed", "canceled"}
_OPEN_WINDOWS: Final = 2
"""Longest wait for a commit, in lengths of an open window; a minute is added for a start of the job."""
_START_SECONDS: Final = 60.0


class NoTopicError(UserError):
    """The log of the settings is no topic."""

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
    """Have an engine read the topic into the store until `stop` is set or SIGTERM or SIGINT arrives.

    Returns what was committed meanwhile; `report` is called with what each commit adds. Then the job is cancelled: what
    it has read and not committed is read again by the next one. `config` and `named` are as for `ingest`. Raises
    `NoTopicError`, `LayoutError`, `BusyStoreError` and `MovedStoreError` as `ingest` does, `FlinkAwayError` and
    `EngineError` where no engine takes the job, and `JobEndedError` where it ends by itself.
    """
    if not is_topic(config.log):
        raise NoTopicError(f"pipeline.log is {config.log}, but a stream reads a topic: kafka://host:port/topic")
    if store.local_path is not None:
        # Workers have another current folder.
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
    """Whether commits follow while the topic has messages that none has; says once why not.

    `since` shows when the newest of them came, or the first message after it (wall clock, s). After `patience_seconds`
    a standstill is logged.
    """

    since: Gauge
    patience_seconds: float
    _since: float | None = field(default=None, init=False)
    _is_told: bool = field(default=False, init=False)

    def moved(self) -> None:
        """Take in a commit."""
        if self._is_told:
            logger.warning("commits follow again")
        self._since, self._is_told = None, False
        self.since.set(math.nan)

    def look(self, unread: int, why: Callable[[], str]) -> None:
        """Take in how many messages no commit has, and what a look at the job says of it."""
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
    """Starts jobs one after the other: a restart is exact, so whatever changes is met by another job."""

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
        # Two states: upkeep takes in commits that are not shown yet.
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
        """Run job after job; the last one is cancelled."""
        self._job.cancel_others()
        self.upkeep.begin()
        while not self.stop.is_set():
            listed = self._asked(self._source.discover)
            if not listed or not self._asked(partial(self._submit, listed)):
                self.stop.wait(self.settings.watch_seconds)
                continue
            try:
                self._watch(listed)
            finally:
                self._job.cancel()
                self._follow()

    def _submit(self, listed: list[KafkaPartition]) -> bool:
        """Start a job that goes on at the commits; False where every partition is stopped."""
        commit_starts(self.store, self._source, self.upkeep.state, listed)
        self._follow()
        found = self._source.identify(listed, self._state, InHand())
        if not found:
            return False
        reading = sources(found, self._state, self.config, self.settings, EventClock.of(self.store))
        for one in reading:
            logger.info("%s is read from offset %d", one.reading.partition.name, one.reading.start)
        submit(self.store, self.config, self.settings, reading, self._name)
        self._job.appear()
        return True

    def _watch(self, listed: list[KafkaPartition]) -> None:
        """Look after the job until another one has to take its place; raises `JobEndedError`."""
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
            now = self._asked(self._source.discover)
            if now is not None and self._needs_another(listed, now):
                return

    def _needs_another(self, listed: list[KafkaPartition], now: list[KafkaPartition]) -> bool:
        """Say whether the job reads something else than there is now; shows how far it is behind."""
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
        # Where a partition goes on is committed between two jobs, when all that was read of it is committed.
        return bool(lost) and self.config.kafka.accept_gap and all(span.is_done for span in lost)

    def _say_awaited(self, unread: int) -> None:
        """Say now and then which window the offsets that are in no commit wait for."""
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
        """Say whether a job whose topic is gone has committed what it had read: the brokers no longer have it.

        Its readers have ended by then, so that all of its windows are complete; Flink keeps such a job running.
        """
        if self._gone_since is None:
            logger.warning("the topic was created again: another job reads it when all of the old one is committed")
            self._gone_since = time.monotonic()
        done = all(self._state.sources[one.key].is_done for one in listed if one.key in self._state.sources)
        return done and time.monotonic() - self._gone_since >= _ENDING_SECONDS

    def _asked(self, question: Callable[[], T]) -> T | None:
        """Return what the brokers answer; None while nobody answers, or the topic does not exist."""
        try:
            found = question()
        except (BrokerAwayError, FileNotFoundError) as error:
            if not self._waits:
                logger.warning("%s; waiting", error)
            self._waits = True
            return None
        if self._waits:
            logger.warning("%s can be read now", self.config.log)
        self._waits = False
        return found

    def _follow(self) -> None:
        """Show what has been committed since."""
        known = {key: span.stop for key, span in self._state.sources.items()}
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
                # Among these is the commit that comes with a change of the settings.
                check_unchanged(self.store, self.config)
        if any(span.stop > known.get(key, -1) for key, span in self._state.sources.items()):
            self._metrics.input.set(time.time())
            self._standstill.moved()
