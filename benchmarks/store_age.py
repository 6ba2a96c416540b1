"""The cost of a store's age: polls that find nothing, runs with ten events and idling, by the number of its windows.

    OMP_NUM_THREADS=1 python -m benchmarks.store_age                         # 10, 1,000 and 10,000 windows; minutes
    OMP_NUM_THREADS=1 python -m benchmarks.store_age --windows 20 --windows 3000       # --json for programs

Every window has a commit and a log file of its own, and the same users (`benchmarks.aged_store`). All costs are CPU
time, user and system, more robust on a busy machine than wall time; medians of repetitions.

- look: one poll of a follower that has seen everything, in microseconds, and its requests to the store. The monitor's
  follows a server that was trained on half of the windows.
- run: ``weir ingest`` on ten new events, in a process of its own, start included; or `weir ingest --follow`, from the
  arrival of ten events until they are committed. Seconds.
- idle: ``weir ingest --follow`` without new events, CPU seconds per 1,000 seconds at 20 looks a second.

The ratio compares with the youngest store of the same run. All ratios should be flat: within 1.5.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from prometheus_client import CollectorRegistry

from benchmarks.aged_store import SETTINGS, AgedStore
from benchmarks.harness import command_line, cpu_seconds, head, row
from weir.contracts import CommitLog, LogState, Store, WindowLog
from weir.serving.client import Info
from weir.serving.histories import FollowedHistories
from weir.serving.metrics import HistoryMetrics
from weir.serving.monitor.freshness import Coverage
from weir.trainer.ranks.workers import Workers
from weir.trainer.stream.windows import StopSignal
from weir.trainer.stream.windows import windows as committed_windows

app = command_line(__doc__)
FLAT: Final = 1.5
NEW: Final = 10
_REQUESTS: Final = ("read", "exists", "glob", "find")
_SLACK: Final = 3.0
"""Seconds after which a following pipeline is idle again."""

Costs = dict[str, float]


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
    found = committed_windows(WindowLog(store), last, Workers(), StopSignal(), follow=True, poll_seconds=0)
    histories = FollowedHistories(store, HistoryMetrics(CollectorRegistry()))
    watched = WindowLog(store)
    coverage, half = Coverage(watched), info(last // 2)
    return {
        "pipeline": lambda: state.catch_up(commits),
        "trainer": lambda: next(found),
        "server": histories.catch_up,
        "monitor": lambda: (coverage.newly_covered(half), watched.committed(after=last)),
    }


def info(trained_sequence: int) -> Info:
    """Return the info of a server that was trained on the windows up to this one."""
    return Info("v", "s", trained_sequence, "Flat", {}, 0, 1, "cosine", 0.0, 0.0, {}, {}, "", "")


def poll_costs(store: Store, times: int) -> Costs:
    """Return microseconds of CPU and requests per poll, by follower."""
    counted = CountedStore(store.url)
    costs = {}
    for follower, poll in polls(counted).items():
        for _ in range(2):
            poll()
        counted.requests.clear()
        seconds = [cpu_of(poll, times // 5) / (times // 5) for _ in range(5)]
        costs[f"look, {follower}, us"] = 1e6 * statistics.median(seconds)
        costs[f"look, {follower}, requests"] = counted.requests.total() / (5 * (times // 5))
    return costs


def cpu_of(action: Callable[[], object], times: int) -> float:
    """Return the CPU seconds of this process that an action takes, so many times."""
    before = time.process_time()
    for _ in range(times):
        action()
    return time.process_time() - before


def command(aged: AgedStore, *more: str) -> list[str]:
    """Return the command line of ``weir ingest``."""
    changed = {name: value for name, value in SETTINGS.model_dump().items() if name not in {"sketch", "log"}}
    defaults = type(SETTINGS)().model_dump()
    pairs = [f"pipeline.{name}={value}" for name, value in changed.items() if value != defaults[name]]
    options = [part for pair in [*pairs, f"pipeline.sketch.width={SETTINGS.sketch.width}"] for part in ("--set", pair)]
    ingest = [sys.executable, "-m", "weir", "ingest", "--store", aged.store.url, "--log", aged.config.log]
    return [*ingest, *options, *more]


def run_of_its_own(aged: AgedStore) -> float:
    """Return the CPU seconds of a process that ingests ten new events."""
    aged.arrive(NEW)
    before = children()
    subprocess.run(command(aged), check=True, capture_output=True)
    spent = children() - before
    check_committed(aged)
    return spent


def children() -> float:
    """Return the CPU seconds of all processes that this one has waited for."""
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def check_committed(aged: AgedStore) -> None:
    """Raise `RuntimeError` unless every window is committed."""
    newest = CommitLog(aged.store).head()
    if newest is None or newest.sequence != aged.windows:
        raise RuntimeError(f"{aged.store.url} holds {newest and newest.sequence} windows of {aged.windows}")


@contextmanager
def following(aged: AgedStore) -> Iterator[Callable[[], float]]:
    """Run ``weir ingest --follow``; yields a function that returns its CPU seconds so far."""
    process = subprocess.Popen(command(aged, "--follow"), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield lambda: cpu_seconds(process.pid)
    finally:
        process.terminate()
        process.wait()


def follow_costs(aged: AgedStore, repeats: int, idle_seconds: float) -> Costs:
    """Return the CPU of a following pipeline, for ten events and for none."""
    runs = []
    with following(aged) as spent:
        # The first run pays for imports and compilation.
        for _ in range(repeats + 1):
            aged.arrive(NEW)
            before = spent()
            wait_for(aged)
            time.sleep(_SLACK)
            runs.append(spent() - before)
        before, started = spent(), time.monotonic()
        time.sleep(idle_seconds)
        idle = (spent() - before) / (time.monotonic() - started)
    return {
        "run, following, s": statistics.median(runs[1:]) - _SLACK * idle,
        "idle, s per 1,000 s": 1000 * idle,
    }


def wait_for(aged: AgedStore) -> None:
    """Wait until every window is committed."""
    until = time.monotonic() + 300
    while (head := CommitLog(aged.store).head()) is None or head.sequence < aged.windows:
        if time.monotonic() > until:
            check_committed(aged)
        time.sleep(0.2)


def measure(folder: Path, count: int, repeats: int, idle_seconds: float) -> Costs:
    """Return the costs of a store with so many windows, by name."""
    aged = AgedStore.make(folder, count)
    costs = poll_costs(aged.store, 500)
    costs["run, own process, s"] = statistics.median(run_of_its_own(aged) for _ in range(repeats))
    return costs | follow_costs(aged, repeats, idle_seconds)


def print_table(found: dict[int, Costs]) -> None:
    """Print a row for each cost: its value and ratio for each number of windows."""
    youngest, *others = found
    head("", *(f"{count:,} windows" for count in found), *(f"{count:,} / {youngest:,}" for count in others), "")
    for name, least in found[youngest].items():
        values = [costs[name] for costs in found.values()]
        ratios = [value / least if least else 1.0 for value in values[1:]]
        flat = all(ratio <= FLAT for ratio in ratios)
        cells = [*(f"{value:.3g}" for value in values), *(f"{ratio:.2f}" for ratio in ratios)]
        row(name, *cells, "flat" if flat else "grows")


@app.command(help=__doc__)
def main(
    windows: Annotated[list[int], typer.Option(help="windows of a store; may be repeated")] = [10, 1000, 10_000],  # noqa: B006 - typer copies it
    repeats: Annotated[int, typer.Option(help="runs with ten events, of each kind")] = 5,
    idle_seconds: Annotated[float, typer.Option(help="how long idling is measured")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Measure and print."""
    found = {}
    for count in sorted(windows):
        with tempfile.TemporaryDirectory(prefix="weir-store-age-") as folder:
            found[count] = measure(Path(folder), count, repeats, idle_seconds)
        print(f"{count:,} windows measured, load average {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        print_table(found)


if __name__ == "__main__":
    app()
