"""The bounded driver: each run reads the present log and ends; to follow a log, the driver repeats runs."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry
from pydantic import JsonValue

from weir.contracts import (
    Commit,
    CommitLog,
    CommitTakenError,
    CorruptArtefactError,
    EventClock,
    LogState,
    SourceSpan,
    Store,
)
from weir.pipelines.batch.run_once import run_once
from weir.pipelines.config import PipelineConfig
from weir.pipelines.histories.compaction import HistoryKeeper
from weir.pipelines.kafka_config import BrokerAwayError
from weir.pipelines.layout import open_layout, with_window
from weir.pipelines.maintenance.cleanup import Erasure
from weir.pipelines.maintenance.retention import Retention
from weir.pipelines.metrics import Awaited, IngestSummary, PipelineMetrics, awaited_window
from weir.pipelines.runs.run import remember_panes
from weir.pipelines.runs.run_registry import (
    append,
    check_writable,
    discard,
    only_driver,
    only_writer,
    registered,
    sweep,
)
from weir.pipelines.sources.log import log_source
from weir.pipelines.sources.plan import InHand, RunPlan, make_plan
from weir.pipelines.sources.source import Source
from weir.pipelines.store_settings import check_unchanged, settled
from weir.pipelines.transforms.commit import RunOutcome
from weir.readers import HINTS, OUTSIDE, Reason, generation, then_retry
from weir.runtime.metrics_server import exposed
from weir.runtime.stopping import ended_by_signals

__all__ = ["IngestSummary", "ingest"]

logger = logging.getLogger(__name__)

_FULL: Final = 0.75
"""Share of `run_bytes` from which on pending rows leave too little room to read."""
_MANY: Final = 0.01
"""Share of a run's rows from which on a refusal reason is worth a warning."""


def ingest(
    store: Store,
    config: PipelineConfig,
    *,
    follow: bool = False,
    report: Callable[[IngestSummary], None] | None = None,
    registry: CollectorRegistry = REGISTRY,
    stop: threading.Event | None = None,
    source: Source[Any] | None = None,
    named: Mapping[str, JsonValue] | None = None,
) -> IngestSummary:
    """Ingest the log of the settings, or another source, into the store; return the sum of all runs.

    Without `follow` one run reads all input and commits every window. With `follow`, runs repeat until `stop` is set or
    SIGTERM or SIGINT arrives; the run in progress is completed first. `report` is called after each run. Unset settings
    of `config` come from the store; a new store records them and `named`, the lasting settings of other stages
    (`weir.pipelines.store_settings`).

    Raises `FileNotFoundError` if the log does not exist (without `follow`), `UselessLogError` if no row of a new log is
    valid, `LayoutError` for settings that contradict the store, `BusyStoreError` if another pipeline writes to it and
    `MovedStoreError` if the log continues in another store. A topic also raises the errors of
    `weir.pipelines.kafka_config`, after committing what it could read.
    """
    stop = stop or threading.Event()
    config = with_window(store, settled(store, config), follow=follow)
    metrics_server = exposed(registry, config.metrics_host, config.metrics_port)
    with ended_by_signals(stop), only_driver(store), only_writer(store), metrics_server:
        metrics = PipelineMetrics(registry)
        source = source or log_source(config, metrics.topic)
        if not follow:
            _look_first(source, store, LogState.open(store), source.discover(), is_all=True)
        driver = _Driver(store, config, metrics, report, stop, source, named)
        try:
            if follow:
                driver.follow()
            else:
                partitions = driver.source.discover()
                driver.catch_up(partitions, flush=True, only_whole_lines=False)
                driver.histories.settle()
                driver.retire(partitions)
                driver.erase()
                if not stop.is_set():
                    driver.source.end()
        finally:
            driver.histories.end()
    return driver.total


@dataclass
class _Driver:
    """Makes the runs of `ingest`, and maintains the store between runs; if its state is lost, it reads more again."""

    store: Store
    config: PipelineConfig
    metrics: PipelineMetrics
    report: Callable[[IngestSummary], None] | None
    stop: threading.Event
    given: InitVar[Source[Any] | None] = None
    named: InitVar[Mapping[str, JsonValue] | None] = None
    total: IngestSummary = field(default_factory=IngestSummary)
    source: Source[Any] = field(init=False)
    _listed: dict[str, tuple[int, int | None]] = field(default_factory=dict, init=False)
    _changed_at: float = field(default_factory=time.monotonic, init=False)
    _may_flush: bool = field(default=True, init=False)
    _unread: bool = field(default=False, init=False)
    _waits: bool = field(default=False, init=False)
    _folders: set[str] = field(default_factory=set, init=False)
    _advised: set[str] = field(default_factory=set, init=False)

    def __post_init__(self, given: Source[Any] | None, named: Mapping[str, JsonValue] | None) -> None:
        self.source = given or log_source(self.config, self.metrics.topic)
        self._secret = open_layout(self.store, self.config, named).key_secret
        check_writable(self.store)
        self._commits, self._in_hand = CommitLog(self.store), InHand()
        self._state = LogState.open(self.store)
        self.source.check(self.store, self._state)
        remember_panes(self.store, self._state)
        sweep(self.store)
        self.histories = HistoryKeeper(self.store, self.config, self._state)
        self.histories.repair()
        days = self.config.retention_days
        self._retention = None if days is None else Retention(self.store, 86_400 * days)
        self._erasure = Erasure(self.store, 86_400 * self.config.erasure_days, (self.config.cache,))
        self._redaction, self._awaited = self._state.redaction, Awaited()
        self.metrics.started(self.store, self.config, self._state)

    def follow(self) -> None:
        """Run whenever the log has changed, and once more with `flush` when the log was idle for `idle_seconds`."""
        while not self.stop.is_set():
            try:
                self._look()
            except BrokerAwayError as error:
                # An unreachable broker does not mean that the log is idle.
                self._changed_at = time.monotonic()
                self._wait_for(f"{error}; waiting, and no window is committed meanwhile")
            self.stop.wait(self.config.poll_seconds)

    def _look(self) -> None:
        """List the log, make the runs that are due and maintain the store, once."""
        partitions = self._discover()
        now = {partition.key: (partition.size, partition.arrival_ms) for partition in partitions}
        is_quiet = time.monotonic() - self._changed_at >= self.config.idle_seconds
        if now != self._listed:
            self._changed_at, self._may_flush = time.monotonic(), True
            self.metrics.input.set_to_current_time()
            if problem := _look_first(self.source, self.store, self._state, partitions, is_all=False):
                logger.warning("%s has no valid row yet, and waits for one: %s", self.config.log, problem)
            else:
                self.catch_up(partitions, flush=False, only_whole_lines=True)
            self._listed = now
        elif is_quiet and (self._may_flush or self._unread):
            self._changed_at, self._may_flush = time.monotonic(), False
            if partitions:
                _look_first(self.source, self.store, self._state, partitions, is_all=True)
            self.catch_up(partitions, flush=True, only_whole_lines=True)
        if self.source.is_behind:
            self._listed = {}
        self._say_awaited()
        self.histories.keep()
        self.retire(partitions)
        self.erase()
        if self._waits and partitions:
            logger.warning("%s can be read now", self.config.log)
            self._waits = False

    def _say_awaited(self) -> None:
        """Log at growing intervals which window the pending rows wait for."""
        if not (waiting := self._in_hand.open_rows):
            self._awaited.over()
            return
        config, start_ms = self.config, min(rows.start_ms for rows in waiting)
        watermark_ms = max(self._in_hand.newest_ms, self._state.max_event_ms) - 1000 * config.allowed_lateness_seconds
        self._awaited.say(lambda: awaited_window(config, start_ms, watermark_ms))

    def _discover(self) -> list[Any]:
        """Return the partitions of the log; log once that it is absent or empty."""
        try:
            partitions = self.source.discover()
        except FileNotFoundError as error:
            self._wait_for(f"{error}; waiting for it")
            return []
        if not partitions:
            self._wait_for(f"{self.config.log} holds no file of a log yet; waiting for the first")
        return partitions

    def _wait_for(self, problem: str) -> None:
        """Log `problem` unless the driver is already waiting."""
        if not self._waits:
            logger.warning("%s", problem)
        self._waits = True

    def catch_up(self, partitions: list[Any], *, flush: bool, only_whole_lines: bool) -> None:
        """Read all partitions, in as many runs as memory requires; `flush` applies to the last run."""
        self._check_in_hand()
        while starts := self.source.starts(partitions, self._state, self._in_hand):
            self._commit(starts)
        readable = self.source.identify(partitions, self._state, self._in_hand)
        new = (found.key for found in readable if found.key not in self._state.sources)
        self.metrics.rewritten.inc(sum(generation(key) > 1 for key in new))
        self._unread = len(readable) < len(partitions)
        ends = _ends(readable)
        while True:
            for part in self.source.cut(readable, self._state, self._in_hand):
                counts = self.step(part, flush=flush and _ends(part) == ends, only_whole_lines=only_whole_lines)
                if self.stop.is_set():
                    return
                if not counts or not self._make_room():
                    # The start positions have changed: cut the runs again.
                    break
            else:
                return

    def _check_in_hand(self) -> None:
        """Drop the uncommitted state if a redaction or another writer has committed since."""
        if self._redaction != self._state.redaction:
            # Pending rows may hold forgotten users and name replaced files: read them again.
            self._redaction, self._in_hand = self._state.redaction, InHand()
        self._in_hand.check(self._state.sources)

    def _make_room(self) -> bool:
        """Commit open windows early if their pending rows leave no room to read; False if that run must be repeated."""
        if self._in_hand.cost <= _FULL * self.config.run_bytes:
            return True
        self._advise(
            "open windows",
            "rows of open windows fill most of pipeline.run_bytes, so the windows are committed in parts: raise "
            "run_bytes, with memory for it, or shorten pipeline.window_seconds",
        )
        return self.step([], flush=True, only_whole_lines=True)

    def _advise(self, about: str, advice: str) -> None:
        """Log `advice`, once for each subject `about`."""
        if about not in self._advised:
            self._advised.add(about)
            logger.warning("%s", advice)

    def _commit(self, starts: dict[str, SourceSpan]) -> None:
        """Commit the start positions of partitions, unless another writer commits first."""
        try:
            append(self._commits, self._state, sources=starts)
        except CommitTakenError:
            self._start_from_commits()
            return
        self._in_hand.follow(self._state.sources)
        for key, span in starts.items():
            self._in_hand.reached[key] = span.resume
            self._in_hand.pending.pop(key, None)

    def retire(self, partitions: list[Any]) -> None:
        """Run retention if it is due and no uncommitted spans are pending."""
        if self._retention is None or not self._retention.is_due or self._in_hand.pending:
            return
        try:
            self._retention.step(self._state, self.source.in_log(partitions))
        except CommitTakenError:
            self._start_from_commits()

    def erase(self) -> None:
        """Remove files that redactions have replaced, once their grace period is over."""
        self._erasure.step(self._state)

    def step(self, partitions: list[Any], *, flush: bool, only_whole_lines: bool) -> bool:
        """Make a run if there is something to read or to commit; return False if the run must be repeated."""
        self._check_in_hand()
        plan = make_plan(
            self.store,
            self.config,
            partitions,
            self._state,
            self._in_hand,
            secret=self._secret,
            flush=flush,
            only_whole_lines=only_whole_lines,
            readings_of=self.source.readings,
        )
        if not (plan.readings or (flush and (self._in_hand.open_rows or self._in_hand.pending))):
            return True
        return self._run(plan)

    def _run(self, plan: RunPlan) -> bool:
        """Make a run; return False if it must be repeated because another writer committed or a file is damaged."""
        check_unchanged(self.store, self.config)
        started, clock = time.time(), time.monotonic()
        with registered(self.store, plan.run):
            try:
                run_once(self.store, self.config, plan, self.source)
            except CorruptArtefactError as error:
                discard(self.store, plan.run)
                self.histories.repair(error)
                return False
            outcome = RunOutcome.of(self.store, plan.run)
            self._folders.add(plan.run.folder)
            if outcome.was_taken:
                logger.warning("commit %d is another writer's: reading again from there", self._state.number + 1)
                discard(self.store, plan.run)
                self._start_from_commits()
                return False
            self._in_hand.take_in(outcome)
            self._unread |= any(reading.partition.key not in outcome.read for reading in plan.readings)
        self._tidy()
        commits = list(self._state.catch_up(self._commits))
        for commit in commits:
            self.metrics.observe(self.store, commit, self._state, started)
        if any(commit.writer != plan.run.id and commit.sources for commit in commits):
            # Another writer has committed beside this run: its commit may hold our pending rows.
            self._start_from_commits()
            return False
        self._in_hand.follow(self._state.sources)
        self._state.save(self._commits)
        self.histories.keep()
        self._report(IngestSummary.of(outcome.commit, time.monotonic() - clock), outcome.commit)
        return True

    def _start_from_commits(self) -> None:
        """Catch up with another writer's commits and drop uncommitted state."""
        self._in_hand.forget()
        self._state.catch_up(self._commits)
        self.source.check(self.store, self._state)

    def _tidy(self) -> None:
        """Remove the folders of earlier runs of this process that no pending rows need."""
        waiting = {rows.name.rpartition("/")[0] for rows in self._in_hand.open_rows}
        for folder in self._folders - waiting:
            self.store.remove(folder)
        self._folders &= waiting

    def _warn(self, summary: IngestSummary, commit: Commit | None) -> None:
        """Warn once about many late events, and once about each refusal reason that is frequent or in `OUTSIDE`."""
        for reason, count in _refused(commit).items():
            is_many = summary.valid > 0 and count >= _MANY * summary.read
            if is_many or reason in OUTSIDE:
                refused = f"{count:,} of {summary.read:,} rows were refused as {reason}"
                self._advise(reason, f"{refused}: {HINTS[Reason(reason)]}{then_retry(reason)}")
        if summary.late and summary.late >= _MANY * summary.valid:
            self._advise(
                "late events",
                f"{summary.late:,} of {summary.valid:,} events came after their window was committed, and may have an "
                "unknown history: sort the log by time, or raise pipeline.run_bytes so that one run reads all of it",
            )

    def _report(self, summary: IngestSummary, commit: Commit | None) -> None:
        """Add a run to the total, and log and report it."""
        self.total += summary
        self._warn(summary, commit)
        if summary.panes:
            self._awaited.over()
        logger.info(
            "run committed %d events in %d panes, %d dead%s",
            summary.valid,
            summary.panes,
            summary.dead,
            _reasons(self.store, commit),
        )
        if self.report is not None:
            self.report(summary)


def _refused(commit: Commit | None) -> Counter[str]:
    """Return the number of refused rows of a commit by reason."""
    return sum((Counter(file.reasons) for file in commit.letters), Counter()) if commit else Counter()


def _ends(partitions: list[Any]) -> list[tuple[str, int]]:
    """Return (key, recorded size) of each partition; `Source.cut` may change the other fields."""
    return [(partition.key, partition.recorded_size) for partition in partitions]


def _look_first(source: Source[Any], store: Store, state: LogState, partitions: list[Any], *, is_all: bool) -> str:
    """Check a log before its first commit: return why a run must wait, "" if it may start; see `Source.look`."""
    return "" if state.number >= 0 else source.look(partitions, EventClock.of(store), is_all=is_all)


def _reasons(store: Store, commit: Commit | None) -> str:
    """Return the numbers of refused rows by reason as text for the log, "" without refused rows."""
    listed = ", ".join(f"{reason} {count}" for reason, count in _refused(commit).most_common())
    return f" ({listed}; see {store.path('dead-letters')})" if listed else ""
