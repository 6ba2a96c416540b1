"""The bounded driver: each run reads what is there and ends; to follow a log, runs follow one another."""

import contextlib
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from prometheus_client import REGISTRY, CollectorRegistry, start_http_server
from pydantic import BaseModel, ConfigDict, Field

from contracts import Store, WindowLog, WindowManifest
from pipelines.chain import BlocksToWindows, ReadBlocks
from pipelines.config import PipelineConfig
from pipelines.faults import DeadLetter
from pipelines.lock import only_writer
from pipelines.metrics import PipelineMetrics
from pipelines.plan import Plan, check_layout, dead_letter_files, make_plan
from pipelines.positions import Seen, seen_partitions
from pipelines.sources import Format, Partition, discover
from pipelines.transforms.dead_letters import read_dead_letters

__all__ = ["IngestSummary", "ingest", "run_once"]

logger = logging.getLogger(__name__)

_INFLATION = 10
"""JSON Lines are about so many times as large as gzip or Parquet of the same rows."""


class IngestSummary(BaseModel):
    """What was committed, by one run or since the start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    def of(cls, commits: list[WindowManifest], dead: int, seconds: float) -> "IngestSummary":
        """Sum up one run."""
        counts = [commit.counts for commit in commits]
        valid, duplicates = sum(c.events for c in counts), sum(c.duplicates for c in counts)
        ignored = sum(c.ignored for c in counts)
        return cls(
            read=valid + duplicates + ignored + dead,
            valid=valid,
            dead=dead,
            duplicates=duplicates,
            late=sum(c.late for c in counts),
            ignored=ignored,
            windows=sum(commit.pane == 0 for commit in commits),
            panes=len(commits),
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
    """Bring the log into the store and return what was committed.

    Without `follow` one run reads all there is and commits every window. With it, run after run reads what has
    come, until `stop` is set or SIGTERM or SIGINT arrives; the run in progress is completed first.
    `report` is called after each run. Raises `FileNotFoundError` where there is no log (without `follow`),
    `LayoutError` for settings that contradict the store and `BusyStoreError` where another pipeline writes to it.
    """
    stop = stop or threading.Event()
    with only_writer(store), _metrics_served(config.metrics_port, registry), _ended_by_signals(stop):
        driver = _Driver(store, config, PipelineMetrics(registry), report, stop)
        if follow:
            driver.follow()
        else:
            driver.catch_up(discover(config.log), flush=True, only_whole_lines=False)
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

    def __post_init__(self) -> None:
        self._log = WindowLog(self.store)
        committed = self._log.committed()
        check_layout(self.store, self.config, committed)
        self.metrics.begun(self.store, self.config, committed)

    def follow(self) -> None:
        """Run whenever the log has changed, and once more when it has been quiet for long enough."""
        sizes: dict[str, int] = {}
        changed_at = time.monotonic()
        may_flush = True
        while not self.stop.is_set():
            partitions = _discover_or_wait(self.config.log)
            now = {partition.key: partition.size for partition in partitions}
            is_quiet = time.monotonic() - changed_at >= self.config.idle_seconds
            if now != sizes:
                sizes, changed_at, may_flush = now, time.monotonic(), True
                self.metrics.input.set_to_current_time()
                self.catch_up(partitions, flush=False, only_whole_lines=True)
            elif may_flush and is_quiet:
                may_flush = False
                self.catch_up(partitions, flush=True, only_whole_lines=True)
            self.stop.wait(self.config.poll_seconds)

    def catch_up(self, partitions: list[Partition], *, flush: bool, only_whole_lines: bool) -> None:
        """Read all partitions, in as many runs as memory asks for; `flush` concerns the last."""
        seen = seen_partitions(self._log.committed())
        sizes = list(accumulate(_new_bytes(partition, seen.get(partition.key)) for partition in partitions))
        for count, size in enumerate(sizes[:-1], start=1):
            if size // self.config.run_bytes < sizes[count] // self.config.run_bytes:
                self.step(partitions[:count], flush=False, only_whole_lines=only_whole_lines)
            if self.stop.is_set():
                return
        self.step(partitions, flush=flush, only_whole_lines=only_whole_lines)

    def step(self, partitions: list[Partition], *, flush: bool, only_whole_lines: bool) -> None:
        """Make one run, if there is anything to read."""
        plan = make_plan(
            self.store,
            self.config,
            partitions,
            self._log.committed(),
            flush=flush,
            only_whole_lines=only_whole_lines,
        )
        if not (plan.readings if flush else plan.is_needed):
            return
        started, clock = time.time(), time.monotonic()
        run_once(self.store, self.config, plan)
        commits = self._log.committed(after=plan.run.committed.last_sequence)
        letters = _new_letters(self.store, plan)
        self.metrics.observe(self.store, commits, letters, started)
        summary = IngestSummary.of(commits, len(letters), time.monotonic() - clock)
        self.total += summary
        logger.info(
            "run committed %d events in %d panes, %d dead%s",
            summary.valid,
            summary.panes,
            summary.dead,
            _reasons(self.store, letters),
        )
        if self.report is not None:
            self.report(summary)


def run_once(store: Store, config: PipelineConfig, plan: Plan) -> None:
    """Run the chain over a plan and wait for its end."""
    # Beam must not look at this process's own command line.
    options = PipelineOptions([f"--runner={config.runner}", *config.runner_options])
    with beam.Pipeline(options=options) as pipeline:
        readings = pipeline | "Partitions" >> beam.Create(plan.readings, reshuffle=False)
        blocks = readings | "Read log" >> ReadBlocks(config)
        _ = blocks | "Windows" >> BlocksToWindows(store, plan.run, config)


def _new_bytes(partition: Partition, seen: Seen | None) -> int:
    """Return how much there is to read, roughly in bytes of JSON Lines."""
    size = max(0, partition.size - (seen.size if seen else 0))
    return size if partition.format is Format.JSON_LINES else _INFLATION * size


def _discover_or_wait(log: str) -> list[Partition]:
    try:
        return discover(log)
    except FileNotFoundError:
        return []


def _reasons(store: Store, letters: list[DeadLetter]) -> str:
    counts = Counter(str(letter.reason) for letter in letters)
    told = ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
    return f" ({told}; see {store.path('dead-letters')})" if letters else ""


def _new_letters(store: Store, plan: Plan) -> list[DeadLetter]:
    """Return the dead letters of the run's partitions that lie beyond what was read before."""
    found = []
    for reading in plan.readings:
        key = reading.partition.key
        seen = plan.run.seen.get(key)
        letters = [letter for name in dead_letter_files(store, key) for letter in read_dead_letters(store, name)]
        found += [letter for letter in letters if seen is None or letter.position >= seen.stop]
    return found


@contextlib.contextmanager
def _metrics_served(port: int, registry: CollectorRegistry) -> Iterator[None]:
    server, thread = start_http_server(port, registry=registry)
    logger.info("metrics on port %d", server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
