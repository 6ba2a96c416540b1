"""The bounded driver: each run reads what is there and ends; to follow a log, runs follow one another."""

import contextlib
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from prometheus_client import REGISTRY, CollectorRegistry
from pydantic import Field

from contracts import Commit, CommitLog, CorruptArtefactError, LogState, Store, WindowCounts
from contracts.exposition import exposed
from contracts.models import FrozenModel
from logs import Format, Partition, discover, generation
from pipelines.attempts import discard, registered, sweep
from pipelines.chain import BlocksToWindows, ReadBlocks, ReadTopic
from pipelines.committed_panes import remember_panes
from pipelines.config import PipelineConfig
from pipelines.kafka.address import is_topic
from pipelines.kafka.client import KafkaPartition
from pipelines.kafka.errors import BrokerAwayError
from pipelines.kafka.topic_input import TopicInput, open_topic
from pipelines.lock import check_writable, only_writer
from pipelines.metrics import PipelineMetrics
from pipelines.plan import InHand, RunPlan, identify, make_plan, open_layout
from pipelines.transforms.commit import RunOutcome

__all__ = ["IngestSummary", "ingest", "run_once"]

logger = logging.getLogger(__name__)

_INFLATION = 10
"""JSON Lines are about so many times as large as gzip or Parquet of the same rows."""


class IngestSummary(FrozenModel):
    """What was committed, by one run or since the start."""

    read: int = Field(default=0, description="rows accounted for: valid, duplicates, ignored and dead")
    valid: int = Field(default=0, description="distinct valid events committed")
    dead: int = Field(default=0, description="rows refused")
    duplicates: int = Field(default=0, description="events dropped because their event_id was known")
    late: int = Field(default=0, description="of the valid: came after their window was committed")
    ignored: int = Field(default=0, description="events of ignored types")
    windows: int = Field(default=0, description="windows committed for the first time")
    panes: int = Field(default=0, description="commits")
    runs: int = Field(default=0, description="pipeline runs")
    seconds: float = Field(default=0.0, description="wall time of the runs, seconds")

    @classmethod
    def of(cls, commit: Commit | None, seconds: float) -> "IngestSummary":
        """Sum up one run."""
        if commit is None:
            return cls(runs=1, seconds=seconds)
        counts = sum((pane.counts for pane in commit.panes), WindowCounts())
        dead = sum(file.rows for file in commit.letters)
        return cls(
            read=counts.events + counts.duplicates + counts.ignored + dead,
            valid=counts.events,
            dead=dead,
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
        return IngestSummary(**{name: mine[name] + theirs[name] for name in mine})


def ingest(
    store: Store,
    config: PipelineConfig,
    *,
    follow: bool = False,
    report: Callable[[IngestSummary], None] | None = None,
    registry: CollectorRegistry = REGISTRY,
    stop: threading.Event | None = None,
) -> IngestSummary:
    """Read the log into the store and return what was committed.

    Without `follow` one run reads all there is and commits every window. With it, run after run reads what has
    come, until `stop` is set or SIGTERM or SIGINT arrives; the run in progress is completed first.
    `report` is called after each run. Raises `FileNotFoundError` where there is no log (without `follow`),
    `LayoutError` for settings that contradict the store and `BusyStoreError` where another pipeline writes to it.
    For a topic it raises the errors of `pipelines.kafka.errors`; what could be read is committed before.
    """
    stop = stop or threading.Event()
    metrics_server = exposed(registry, config.metrics_host, config.metrics_port)
    with only_writer(store), metrics_server, _ended_by_signals(stop):
        driver = _Driver(store, config, PipelineMetrics(registry), report, stop)
        if follow:
            driver.follow()
        else:
            driver.once()
    return driver.total


@dataclass
class _Driver:
    """Decides when a run is due; all it remembers between runs only spares work."""

    store: Store
    config: PipelineConfig
    metrics: PipelineMetrics
    report: Callable[[IngestSummary], None] | None
    stop: threading.Event
    total: IngestSummary = field(default_factory=IngestSummary)
    _unread: bool = field(default=False, init=False)
    _folders: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._secret = open_layout(self.store, self.config).key_secret
        check_writable(self.store)
        self._commits, self._in_hand = CommitLog(self.store), InHand()
        self._state = LogState.open(self.store)
        remember_panes(self.store, self._state)
        sweep(self.store)
        self._topic = open_topic(self.config, self.metrics.topic)
        self.metrics.started(self.store, self.config, self._state)

    def once(self) -> None:
        """Read all there is, and commit every window."""
        if self._topic is None:
            self.catch_up(discover(self.config.log), flush=True, only_whole_lines=False)
            return
        is_whole = self._read_topic(self._topic, self._topic.look(), flush=True)
        if not self.stop.is_set():
            self._topic.check(is_whole=is_whole)

    def follow(self) -> None:
        """Run whenever the log has changed, and once more when it has been quiet for long enough."""
        listed: dict[str, tuple[int, int | None]] = {}
        look = self._topic.look_or_wait if self._topic else partial(_discover_or_wait, self.config.log)
        changed_at = time.monotonic()
        may_flush = True
        while not self.stop.is_set():
            if (partitions := look()) is None:
                # Silence of the brokers is no silence of the log.
                changed_at = time.monotonic()
                self.stop.wait(self.config.poll_seconds)
                continue
            now = {partition.key: (partition.size, partition.arrival_ms) for partition in partitions}
            is_quiet = time.monotonic() - changed_at >= self.config.idle_seconds
            if now != listed:
                changed_at, may_flush = time.monotonic(), True
                self.metrics.input.set_to_current_time()
                listed = now if self._catch_up(partitions, flush=False) else {}
            elif is_quiet and (may_flush or self._unread):
                changed_at, may_flush = time.monotonic(), False
                listed = listed if self._catch_up(partitions, flush=True) else {}
            self.stop.wait(self.config.poll_seconds)

    def _catch_up(self, partitions: Sequence[Partition | KafkaPartition], *, flush: bool) -> bool:
        """Read all partitions while following; say whether there is no more to read of what was listed."""
        if self._topic is not None:
            return self._read_topic(
                self._topic, [one for one in partitions if isinstance(one, KafkaPartition)], flush=flush
            )
        self.catch_up([one for one in partitions if isinstance(one, Partition)], flush=flush, only_whole_lines=True)
        return True

    def _read_topic(self, topic: TopicInput, partitions: list[KafkaPartition], *, flush: bool) -> bool:
        """Read a topic in as many runs as memory asks for; say whether all that was listed is read."""
        left = -1
        while left:
            try:
                found = topic.settle(partitions, self._state, self._in_hand)
            except BrokerAwayError as error:
                logger.info("%s", error)
                return False
            if not self._in_hand.open_rows and any(key not in self._state.sources for key in self._in_hand.pending):
                # Where reading starts is committed first: after a restart "latest" would mean another place.
                self.step([], flush=True, only_whole_lines=True)
            before, number = topic.unread(found, self._state, self._in_hand), self._state.number
            self.step(found, flush=flush, only_whole_lines=True)
            left = topic.unread(found, self._state, self._in_hand)
            is_stuck = left >= before and self._state.number == number
            if self.stop.is_set() or is_stuck:
                return left == 0
        return True

    def catch_up(self, partitions: list[Partition], *, flush: bool, only_whole_lines: bool) -> None:
        """Read all partitions, in as many runs as memory asks for; `flush` concerns the last."""
        found = identify(partitions, self._state, self._in_hand)
        self.metrics.rewritten.inc(sum(generation(one.key) > 1 and one.key not in self._state.sources for one in found))
        self._unread = len(found) < len(partitions)
        sizes = list(accumulate(self._new_bytes(partition) for partition in found))
        for count, size in enumerate(sizes[:-1], start=1):
            if size // self.config.run_bytes < sizes[count] // self.config.run_bytes:
                self.step(found[:count], flush=False, only_whole_lines=only_whole_lines)
            if self.stop.is_set():
                return
        self.step(found, flush=flush, only_whole_lines=only_whole_lines)

    def _new_bytes(self, partition: Partition) -> int:
        """Return how much there is to read, roughly in bytes of JSON Lines."""
        seen = self._in_hand.pending.get(partition.key) or self._state.sources.get(partition.key)
        size = max(0, partition.size - (seen.size if seen else 0))
        return size if partition.format is Format.JSON_LINES else _INFLATION * size

    def step(self, partitions: Sequence[Partition | KafkaPartition], *, flush: bool, only_whole_lines: bool) -> None:
        """Make one run, if there is anything to read or to commit; again where another writer was faster."""
        while True:
            plan = make_plan(
                self.store,
                self.config,
                partitions,
                self._state,
                self._in_hand,
                secret=self._secret,
                flush=flush,
                only_whole_lines=only_whole_lines,
            )
            if not (plan.readings or (flush and (self._in_hand.open_rows or self._in_hand.pending))):
                return
            if self._run(plan):
                return

    def _run(self, plan: RunPlan) -> bool:
        """Make a run; say whether it counts: where another writer has made its commit, nothing of it does."""
        started, clock = time.time(), time.monotonic()
        with registered(self.store, plan.run):
            run_once(self.store, self.config, plan)
            outcome = RunOutcome.of(self.store, plan.run)
            self._folders.add(plan.run.folder)
            if outcome.was_taken:
                logger.warning("commit %d is another writer's: reading again from there", self._state.number + 1)
                discard(self.store, plan.run)
                # Nothing in hand is known to fit what the other has committed.
                self._in_hand = InHand()
                self._state.catch_up(self._commits)
                return False
            self._in_hand.take_in(outcome)
            self._unread |= any(reading.partition.key not in outcome.read for reading in plan.readings)
        self._tidy()
        for commit in self._state.catch_up(self._commits):
            self.metrics.observe(self.store, commit, self._state, started)
        self._state.save(self._commits)
        self._report(IngestSummary.of(outcome.commit, time.monotonic() - clock), outcome.commit)
        return True

    def _tidy(self) -> None:
        """Remove what earlier runs of this process have kept and nothing waits for."""
        waiting = {rows.name.rpartition("/")[0] for rows in self._in_hand.open_rows}
        for folder in self._folders - waiting:
            self.store.remove(folder)
        self._folders &= waiting

    def _report(self, summary: IngestSummary, commit: Commit | None) -> None:
        self.total += summary
        logger.info(
            "run committed %d events in %d panes, %d dead%s",
            summary.valid,
            summary.panes,
            summary.dead,
            _reasons(self.store, commit),
        )
        if self.report is not None:
            self.report(summary)


def run_once(store: Store, config: PipelineConfig, plan: RunPlan) -> None:
    """Run the chain over a plan and wait for its end."""
    # Beam must not look at this process's own command line.
    options = PipelineOptions([f"--runner={config.runner}", *config.runner_options])
    try:
        with beam.Pipeline(options=options) as pipeline:
            readings = pipeline | "Partitions" >> beam.Create(plan.readings, reshuffle=False)
            blocks = readings | "Read log" >> (ReadTopic(config) if is_topic(config.log) else ReadBlocks(config))
            _ = blocks | "Windows" >> BlocksToWindows(store, plan.run, config)
    except RuntimeError as error:
        # Beam wraps what a transform raises; a damaged file is to be named without its frame.
        if (damage := _damage_behind(error)) is None:
            raise
        raise damage from error


def _damage_behind(error: BaseException) -> CorruptArtefactError | None:
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, CorruptArtefactError):
        behind = behind.__cause__ or behind.__context__
    return behind


def _discover_or_wait(log: str) -> list[Partition]:
    try:
        return discover(log)
    except FileNotFoundError:
        return []


def _reasons(store: Store, commit: Commit | None) -> str:
    counts: Counter[str] = sum((Counter(file.reasons) for file in commit.letters), Counter()) if commit else Counter()
    listed = ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
    return f" ({listed}; see {store.path('dead-letters')})" if listed else ""


@contextlib.contextmanager
def _ended_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM and SIGINT; only the main thread may ask for signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: Any) -> None:
        logger.info("%s: ending after this run", signal.Signals(number).name)
        stop.set()

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
