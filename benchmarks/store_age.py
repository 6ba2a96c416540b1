"""The cost of a store's age: polls that find nothing, runs with ten events and idling, by the number of its windows.

    OMP_NUM_THREADS=1 python -m benchmarks.store_age run                     # 10, 1,000 and 10,000 windows; minutes
    OMP_NUM_THREADS=1 python -m benchmarks.store_age run --windows 20 --windows 3000
    OMP_NUM_THREADS=1 python -m benchmarks.store_age forget                  # a user of one or all of the windows
    OMP_NUM_THREADS=1 python -m benchmarks.store_age forget-user             # by the number of users; 6 GB of disk

Every window has a commit and a log file of its own, and the same users. The pipeline writes the first window; later
ones link its files, each with its own commit, log file and event time. A last run of the pipeline writes its snapshots.
All costs are CPU time, user and system; medians of repetitions.

- look: one poll of a follower that has seen everything, in microseconds, and its requests to the store.
- run: ``weir ingest`` on ten new events, in a process of its own, start included; or `weir ingest --follow`, from the
  arrival of ten events until they are committed. Seconds.
- idle: ``weir ingest --follow`` without new events, CPU seconds per 1,000 seconds at 20 looks a second.

The ratio compares with the youngest store of the same run; up to 1.5 is flat.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from prometheus_client import CollectorRegistry

from benchmarks.harness import Peak, command_line, cpu_of_call, cpu_seconds, head, new_store, row, running
from benchmarks.histories import store_with_users
from weir.contracts import Commit, CommitLog, LogState, Store, WindowLog, WindowManifest
from weir.contracts.commits.commit_log import Head
from weir.contracts.storage.documents import encode_document
from weir.contracts.storage.store import checksum
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig, SketchConfig
from weir.pipelines.maintenance.erased_files import Forgotten
from weir.pipelines.maintenance.erasure import RedactionReport, forget_users
from weir.serving.client import Info
from weir.serving.histories.files import FollowedHistories
from weir.serving.metrics import HistoryMetrics
from weir.serving.monitor.loop import Coverage
from weir.trainer.ranks.workers import Workers
from weir.trainer.stream.windows import windows as committed_windows

app = command_line(__doc__)
FLAT: Final = 1.5
NEW: Final = 10
POLLS: Final = 100
REPEATS: Final = 5
IDLE_SECONDS: Final = 10.0
_REQUESTS: Final = ("read", "exists", "glob", "find")
_SLACK: Final = 3.0
"""Seconds after which a following pipeline is idle again."""

Costs = dict[str, float]
Windows = Annotated[list[int], typer.Option(help="windows of a store; may be repeated")]
SIZES: Final = [10, 1000, 10_000]
USERS: Final = [100_000, 1_000_000, 5_000_000]

SETTINGS: Final = PipelineConfig(
    window_seconds=60,
    allowed_lateness_seconds=0,
    history_length=50,
    user_shards=2,
    sketch=SketchConfig(width=1 << 12),
    idle_seconds=0,
    poll_seconds=0.05,
    metrics_port=0,
)

_ORIGIN: Final = 1_700_000_040
_USERS: Final = 100
_ITEMS: Final = 500
_EVENTS: Final = 200


@dataclass
class AgedStore:
    """A store in ``folder/store`` and its log in ``folder/log``; `windows` counts the windows, one per commit."""

    folder: Path
    windows: int = 0

    @classmethod
    def make(cls, folder: Path, windows: int) -> "AgedStore":
        """Create a store with so many windows, the last of them by a run that writes snapshots."""
        aged = cls(folder)
        aged.arrive(_EVENTS)
        aged.ingest()
        aged._repeat(windows - 1)
        aged.arrive(_EVENTS)
        aged.ingest()
        return aged

    @property
    def store(self) -> Store:
        """The store."""
        return Store(str(self.folder / "store"))

    @property
    def config(self) -> PipelineConfig:
        """The settings of its pipeline."""
        return SETTINGS.model_copy(update={"log": str(self.folder / "log")})

    def arrive(self, events: int, who: str = "user") -> None:
        """Append events of the next window to the log, in a file of their own; users are called `who` and a number."""
        start = _ORIGIN + self.windows * SETTINGS.window_ms // 1000
        rows = [
            {
                "user_id": f"{who}-{number % _USERS}",
                "item_id": f"item-{(7 * number + self.windows) % _ITEMS}",
                "timestamp": start + number * SETTINGS.window_ms // 1000 // events,
            }
            for number in range(events)
        ]
        path = self.folder / "log" / _part(self.windows)
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(f"{json.dumps(one)}\n" for one in rows), encoding="utf-8")
        hidden.replace(path)
        self.windows += 1

    def ingest(self) -> None:
        """Run the pipeline in this process."""
        ingest(self.store, self.config, registry=CollectorRegistry())

    def _repeat(self, times: int) -> None:
        """Commit the window of the newest commit again, so many times at later event times; remove its log file."""
        log = CommitLog(self.store)
        first, before = log.get(log.newest()), log.at(log.newest() + 1)
        digest, [pane] = before.checksum, first.panes
        span = first.sources[_part(0)]
        for later in range(1, times + 1):
            number = first.number + later
            name = f"{later:020x}"
            commit = Commit(
                number=number,
                writer=name,
                predecessor=digest,
                committed_at=first.committed_at,
                sequence=first.sequence + later,
                panes=(_later(pane, later, name),),
                sources={_part(self.windows): span},
            )
            source, target = (Path(self.store.path(one.folder)) for one in (pane, *commit.panes))
            target.mkdir(parents=True)
            for entry in pane.files:
                os.link(source / entry.name, target / entry.name)
            data = encode_document(commit)
            # Without `fsync`, which takes most of the time.
            Path(self.store.path(CommitLog.name(number))).write_bytes(data)
            digest = checksum(data)
            self.windows += 1
        log.point(Head(number=first.number + times, sequence=first.sequence + times + 1))
        (self.folder / "log" / _part(0)).unlink()


def _part(number: int) -> str:
    return f"part-{number:06d}.jsonl"


def _later(pane: WindowManifest, later: int, attempt: str) -> WindowManifest:
    by = later * SETTINGS.window_ms
    moved = {name: getattr(pane, name) + by for name in ("start_ms", "end_ms", "min_event_ms", "max_event_ms")}
    return pane.model_copy(update={**moved, "sequence": pane.sequence + later, "attempt": attempt})


@dataclass(frozen=True)
class CountedStore(Store):
    """A store that counts its requests."""

    requests: Counter[str] = field(default_factory=Counter, compare=False)

    def __getattribute__(self, name: str) -> Any:
        if name in _REQUESTS:
            self.requests[name] += 1
        return super().__getattribute__(name)


def polls(store: Store) -> dict[str, Callable[[], object]]:
    """Return one poll of each follower that has seen everything."""
    state, commits = LogState.open(store), CommitLog(store)
    last = state.cursor.sequence - 1
    found = committed_windows(WindowLog(store), last, Workers(), threading.Event(), follow=True, poll_seconds=0)
    histories = FollowedHistories(store, HistoryMetrics(CollectorRegistry()))
    watched = WindowLog(store)
    # A server that was trained on the first half of the windows.
    half = Info("v", "s", last // 2, "Flat", {}, 0, 1, "cosine", 0.0, 0.0, {}, {}, "", "")
    coverage = Coverage(watched)
    return {
        "pipeline": lambda: state.catch_up(commits),
        "trainer": lambda: next(found),
        "server": histories.catch_up,
        "monitor": lambda: (coverage.newly_covered(half), watched.committed(after=last)),
    }


def poll_costs(store: Store) -> Costs:
    """Return microseconds of CPU and requests per poll, by follower."""
    counted = CountedStore(store.url)
    costs = {}
    for follower, poll in polls(counted).items():
        for _ in range(2):
            poll()
        counted.requests.clear()
        seconds = [cpu_of_call(poll, POLLS) / POLLS for _ in range(5)]
        costs[f"look, {follower}, us"] = 1e6 * statistics.median(seconds)
        costs[f"look, {follower}, requests"] = counted.requests.total() / (5 * POLLS)
    return costs


def command(aged: AgedStore, *more: str) -> list[str]:
    """Return the command line of ``weir ingest``."""
    file = aged.folder / "weir.json"
    file.write_text(json.dumps({"store": aged.store.url, "pipeline": aged.config.model_dump(mode="json")}))
    return [sys.executable, "-m", "weir", "ingest", "--config", str(file), *more]


def run_of_its_own(aged: AgedStore) -> float:
    """Return the CPU seconds of a process that ingests ten new events."""
    aged.arrive(NEW)
    before = children()
    subprocess.run(command(aged), check=True, capture_output=True)
    spent = children() - before
    wait_for(aged)
    return spent


def children() -> float:
    """Return the CPU seconds of all processes that this one has waited for."""
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def follow_costs(aged: AgedStore) -> Costs:
    """Return the CPU of a following pipeline, for ten events and for none."""
    runs = []
    with running(command(aged, "--follow"), subprocess.DEVNULL) as process:
        spent = partial(cpu_seconds, process.pid)
        # The first run pays for imports and compilation.
        for _ in range(REPEATS + 1):
            aged.arrive(NEW)
            before = spent()
            wait_for(aged)
            time.sleep(_SLACK)
            runs.append(spent() - before)
        before, started = spent(), time.monotonic()
        time.sleep(IDLE_SECONDS)
        idle = (spent() - before) / (time.monotonic() - started)
    return {
        "run, following, s": statistics.median(runs[1:]) - _SLACK * idle,
        "idle, s per 1,000 s": 1000 * idle,
    }


def wait_for(aged: AgedStore) -> None:
    """Wait until every window is committed; raises `RuntimeError` if some are not after five minutes."""
    until = time.monotonic() + 300
    while (newest := CommitLog(aged.store).head()) is None or newest.sequence < aged.windows:
        if time.monotonic() > until:
            raise RuntimeError(f"{aged.store.url} holds {newest and newest.sequence} windows of {aged.windows}")
        time.sleep(0.2)


def measure(folder: Path, count: int) -> Costs:
    """Return the costs of a store with so many windows, by name."""
    aged = AgedStore.make(folder, count)
    costs = poll_costs(aged.store)
    costs["run, own process, s"] = statistics.median(run_of_its_own(aged) for _ in range(REPEATS))
    return costs | follow_costs(aged)


def print_table(found: dict[int, Costs]) -> None:
    """Print a row for each cost: its value and ratio for each number of windows."""
    youngest, *others = found
    head("cost", *(f"{count} windows" for count in found), *(f"{count} / {youngest}" for count in others), "growth")
    for name, least in found[youngest].items():
        values = [costs[name] for costs in found.values()]
        ratios = [value / least if least else 1.0 for value in values[1:]]
        flat = all(ratio <= FLAT for ratio in ratios)
        row(name, *values, *(f"{ratio:.2f}" for ratio in ratios), "flat" if flat else "grows")


@app.command()
def run(windows: Windows = SIZES) -> None:
    """Measure looks, runs and idling, and print them."""
    found = {}
    for count in sorted(windows):
        with tempfile.TemporaryDirectory(prefix="weir-store-age-") as folder:
            found[count] = measure(Path(folder), count)
        print(f"{count:,} windows measured, load average {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    print_table(found)


def forgotten(store: Store, config: PipelineConfig, user: str) -> tuple[RedactionReport, list[object]]:
    """Forget a user; return the report, and the cells of CPU seconds, megabytes written and of own memory."""
    before = store.find()
    with Peak() as peak:
        report = forget_users(store, config, Forgotten.of([user], ""))
    written = sum(stat.size for name, stat in store.find().items() if name not in before)
    return report, [peak.cpu, written / 1e6, peak.own / 1e6]


@app.command()
def forget(windows: Windows = SIZES) -> None:
    """Forget a user of the newest window, and one of every window."""
    head("windows", "user of", "panes replaced", "CPU s", "written MB", "memory MB")
    for count in windows:
        with tempfile.TemporaryDirectory(prefix="weir-store-age-") as folder:
            aged = AgedStore.make(Path(folder), count)
            aged.arrive(NEW, "guest")
            aged.ingest()
            for who, user in (("one", "guest-1"), ("all", "user-1")):
                report, cells = forgotten(aged.store, aged.config, user)
                row(f"{count:,}", who, report.panes, *cells)


@app.command()
def forget_user(users: Annotated[list[int], typer.Option(help="users stored; may be repeated")] = USERS) -> None:
    """Forget one user of stores without windows: the file of their shard is written again."""
    head("users", "files replaced", "CPU s", "written MB", "memory MB")
    for count in users:
        with new_store("forget", Path.cwd()) as store:
            store_with_users(store, count, ["ann"])
            report, cells = forgotten(store, PipelineConfig(), "ann")
            row(f"{count:,}", report.history_files, *cells)


if __name__ == "__main__":
    app()
