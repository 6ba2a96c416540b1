"""Seconds from event to servable, with a large catalogue: all stages on this machine, events at a steady rate.

    OMP_NUM_THREADS=1 python -m benchmarks.freshness                                # a million items, 5,000 events/s
    OMP_NUM_THREADS=1 python -m benchmarks.freshness --items 20000 --rate 500       # a quick look

The store starts with a trained state and a bundle of all items. Then `weir up` runs pipeline, trainer, server and
monitor, while this process writes events, timed by the clock, into the log: a segment twice a second. Items follow a
Zipf law, users are drawn evenly. Seconds are the monitor's, from each event to the first served bundle that was trained
on it, over all windows of the second half; CPU is that of each stage while events came, in cores.

The second table splits these seconds: the end of the window; its commit (lateness, reading, the run); the test (until
the trainer is free, then the test); the draft of the first bundle that is served with it (training, also on windows
taken with it); that bundle's promotion (files, gate); the server (its poll, then loading). Quantiles are of each part.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from benchmarks.harness import F64, command_line, cpu_seconds, descendants, head, row, running, zipf_ranks
from benchmarks.states import filled, item_id
from weir.contracts import BundleLog, Store, WindowLog, WindowManifest
from weir.contracts.storage.artefacts import MANIFEST
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.serving.monitor.results import Freshness, recorded
from weir.trainer.export import export_bundle
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog

app = command_line(__doc__)
SEGMENT: Final = 0.5
USERS: Final = 100_000
TESTED: Final = 10
"""Test events of each second of a window."""
STAGES: Final = ("ingest", "train", "serve", "monitor")
PARTS: Final = ("end of the window", "commit", "trainer free, test", "training, draft", "files, gate", "server")
PORT_OFFSET: Final = 700


def settings(folder: Path, window: int) -> dict[str, dict[str, Any]]:
    """Return the settings of the stages that are not the defaults."""
    short = {"idle_seconds": 1.0, "poll_seconds": 0.2, "allowed_lateness_seconds": 1}
    return {
        "pipeline": {"log": str(folder / "log"), "window_seconds": window, **short},
        "trainer": {
            "device": "cpu",
            "batch_size": 1024,
            # Each test event is ranked against all items: as many a second, however long a window is.
            "evaluation_examples": TESTED * window,
            "export_every_windows": 1,
            "bundle_chain": 64,
            # What a bundle waited for is read from its manifest after the run.
            "bundles_kept": 1000,
        },
        "monitor": {"examples_per_window": 50, "queries_per_request": 25},
    }


def prepare(folder: Path, items: int, window: int) -> Store:
    """Create a store with a first window, a state that knows all items, and its bundle."""
    store, chosen = Store(str(folder / "store")), settings(folder, window)
    (folder / "log").mkdir()
    write_segment(folder, 0, np.zeros(100, np.int64), time.time() - 60)
    ingest(store, PipelineConfig(**chosen["pipeline"]))
    know_items(store, TrainerConfig(**chosen["trainer"]), items)
    return store


def know_items(store: Store, config: TrainerConfig, items: int) -> None:
    """Save a state behind the first window that knows so many items, and publish its bundle."""
    state = filled(config, items)
    state.position.sequence = 1
    export_bundle(store, state)
    CheckpointLog(store).save(state, Workers())


def write_segment(folder: Path, number: int, ranks: np.ndarray, now: float) -> None:
    """Place events of the last half second into the log, atomically."""
    times = np.sort(now - SEGMENT * np.random.default_rng(number).random(len(ranks)))
    users = np.random.default_rng(number).integers(0, USERS, len(ranks))
    lines = [
        f'{{"user_id":"user-{user}","item_id":"{item_id(item)}","timestamp":{round(1000 * when)}}}\n'
        for user, item, when in zip(users.tolist(), ranks.tolist(), times.tolist(), strict=True)
    ]
    written = folder / "segment"
    written.write_text("".join(lines))
    written.rename(folder / "log" / f"segment-{number:06d}.jsonl")


@contextmanager
def stages(folder: Path, store: Store, window: int) -> Iterator[int]:
    """Run `weir up`; yields its process id once it answers and its trainer can take windows."""
    file = folder / "weir.yaml"
    file.write_text(json.dumps(settings(folder, window)))
    command = ["weir", "up", "--config", str(file), "--store", store.url, "--port-offset", str(PORT_OFFSET)]
    with (
        (folder / "up.log").open("wb") as output,
        running([sys.executable, "-m", *command, "--ranks", "1"], output) as process,
    ):
        for name, text in (("up.log", "answers after"), ("store/logs/trainer.log", "ready to export")):
            wait_for(folder / name, text, process, folder / "up.log")
        yield process.pid


def wait_for(log: Path, text: str, process: subprocess.Popen[bytes], said: Path) -> None:
    """Wait until a log shows a text; raises `RuntimeError` if the process has ended, with what it has `said`."""
    while not (log.exists() and text in log.read_text()):
        if process.poll() is not None:
            raise RuntimeError(f"{said.stem} ended with status {process.returncode}: {said.read_text()[-2000:]}")
        time.sleep(0.5)


def spent(parent: int) -> dict[str, float]:
    """Return the CPU seconds of the descendants of a process, by stage."""
    found = dict.fromkeys(STAGES, 0.0)
    for process in descendants(parent):
        words = Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")
        for stage in STAGES:
            found[stage] += cpu_seconds(process) if stage in words else 0.0
    return found


def feed(folder: Path, items: int, rate: int, seconds: int) -> None:
    """Write events at a steady rate."""
    ranks, _ = zipf_ranks(items, rate * seconds, 1.0, np.random.default_rng(0))
    started, size = time.time(), round(rate * SEGMENT)
    for number in range(len(ranks) // size):
        due = started + (number + 1) * SEGMENT
        time.sleep(max(0.0, due - time.time()))
        write_segment(folder, number + 1, ranks[number * size : (number + 1) * size], due)


def served(store: Store, last: int) -> list[tuple[WindowManifest, Freshness]]:
    """Return the windows of the second half that are servable, once that holds for the last, or time is up."""
    until = time.monotonic() + 120
    while True:
        found = {one.sequence: one.freshness for one in recorded(store) if one.freshness is not None}
        if time.monotonic() > until or last in found:
            break
        time.sleep(1)
    newer = [one for one in WindowLog(store).committed() if one.sequence > last / 2]
    return [(one, found[one.sequence]) for one in newer if one.sequence in found]


def parts_of(store: Store, window: WindowManifest, freshness: Freshness) -> F64:
    """Return the seconds that quantiles of a window's events (n,) spent in each part, (n, parts)."""
    bundle, end = BundleLog(store).manifest(freshness.bundle_version), window.end_ms / 1000
    stamps = [
        end,
        window.committed_at,
        store.modified(f"evaluations/{window.name}.json"),
        bundle.created_at,
        store.modified(f"{bundle.folder}/{MANIFEST}"),
        freshness.servable_at,
    ]
    seconds = np.tile(np.diff(stamps, prepend=0.0), (len(freshness.quantiles), 1))
    seconds[:, 0] = np.array(freshness.quantiles) - (freshness.servable_at - end)
    return seconds


def print_parts(parts: dict[str, F64]) -> None:
    """Print quantiles of the seconds that events spent in each part of the way."""
    print()
    head("part of the way", "p50, s", "p95, s", "longest, s")
    for name, seconds in parts.items():
        row(name, *quantiles(seconds, 2))


def quantiles(seconds: F64, digits: int) -> list[str]:
    """Return the cells of median, 95th percentile and maximum."""
    return [f"{value:.{digits}f}" for value in (*np.quantile(seconds, (0.5, 0.95)), seconds.max())]


@app.command(help=__doc__)
def main(
    items: Annotated[int, typer.Option(help="items of the catalogue")] = 1_000_000,
    rate: Annotated[int, typer.Option(help="events per second")] = 5_000,
    seconds: Annotated[int, typer.Option(help="how long events come")] = 180,
    window: Annotated[int, typer.Option(help="seconds of a window")] = 5,
) -> None:
    """Measure and print."""
    head("items", "events/s", "windows", "p50, s", "p95, s", "longest, s", *(f"{stage}, cores" for stage in STAGES))
    with tempfile.TemporaryDirectory(prefix="weir-freshness-") as name:
        folder = Path(name)
        store = prepare(folder, items, window)
        with stages(folder, store, window) as pid:
            before, started = spent(pid), time.monotonic()
            feed(folder, items, rate, seconds)
            elapsed, after = time.monotonic() - started, spent(pid)
            [newest] = WindowLog(store).newest(1)
            found = served(store, newest.sequence)
        if not found:
            raise RuntimeError(f"nothing became servable; the log of the stages was\n{(folder / 'up.log').read_text()}")
        cores = [f"{(after[stage] - before[stage]) / elapsed:.2f}" for stage in STAGES]
        totals = np.concatenate([freshness.quantiles for _, freshness in found])
        row(f"{items:,}", f"{rate:,}", newest.sequence, *quantiles(totals, 1), *cores)
        parts = np.concatenate([parts_of(store, *one) for one in found])
        print_parts(dict(zip(PARTS, parts.T, strict=True)))
        print(f"load average {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    app()
