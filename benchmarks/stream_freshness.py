"""Seconds from event to servable through Kafka and Flink: all engines and stages on this machine, at a steady rate.

    OMP_NUM_THREADS=1 python -m benchmarks.stream_freshness                                  # windows of 10 s
    OMP_NUM_THREADS=1 python -m benchmarks.stream_freshness --set stream.checkpoint_seconds=10 --seconds 240

The store starts with a trained state and a bundle of all items. Then a broker, Flink with its job server and workers,
`weir stream`, trainer, server and monitor run (`make tools` fetches the engines), while this process writes events,
timed by the clock, to a topic of four partitions. Seconds, items and users are as in `benchmarks.freshness`. The second
table cuts the seconds, window by window, at what each stage has written down. CPU is in cores, while events came.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from confluent_kafka import Producer

from benchmarks.freshness import USERS, know_items, print_parts, quantiles, served, wait_for
from benchmarks.harness import F64, I64, command_line, descendants, head, row, zipf_ranks
from benchmarks.states import item_id
from benchmarks.stream import PARTITIONS, cpu_of
from tests.campaigns.lives import ROOT
from tests.campaigns.stream_faults import Stream, streaming
from tests.ports import free_port
from weir.config import assignments
from weir.contracts import BundleLog, CommitLog, WindowLog
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.runs.run_registry import started_at
from weir.serving.monitor.results import recorded
from weir.trainer.settings.trainer import TrainerConfig

app = command_line(__doc__)

_TOPIC: Final = "events"
_TICK: Final = 0.05
"""Seconds between two writes to the topic."""
_STAGES: Final = {"train": ("train", "--follow", "--ranks", "1"), "serve": ("serve",), "monitor": ("monitor",)}


def _settings(more: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings of the stages behind the stream."""
    port = free_port()
    short: dict[str, dict[str, Any]] = {
        # Bundles are kept for their times; each test event is ranked against all items.
        "trainer": {"device": "cpu", "batch_size": 1024, "evaluation_examples": 100, "bundles_kept": 1000},
        "serving": {"port": port},
        "monitor": {"examples_per_window": 50, "queries_per_request": 25, "target": f"127.0.0.1:{port}"},
    }
    return {name: {**values, "metrics_port": free_port(), **more.get(name, {})} for name, values in short.items()}


def _prepare(stream: Stream, items: int, trainer: dict[str, Any]) -> None:
    """Commit a first window, and a state and a bundle that know all items."""
    _write(_producer(stream), stream.topic, np.zeros(100, np.int64), time.time() - 60)
    ingest(stream.store, stream.pipeline)
    know_items(stream.store, TrainerConfig(**trainer), items)


def _producer(stream: Stream) -> Producer:
    return Producer({"bootstrap.servers": stream.servers, "linger.ms": 5, "log_level": 0})


def _write(producer: Producer, topic: str, ranks: I64, now: float) -> None:
    """Send an event of each item, and wait until the broker has them."""
    users = np.random.default_rng(round(1000 * now)).integers(0, USERS, len(ranks)).tolist()
    for rank, user in zip(ranks.tolist(), users, strict=True):
        line = f'{{"user_id":"user-{user}","item_id":"{item_id(rank)}","timestamp":{round(1000 * now)}}}'
        producer.produce(topic, line.encode(), partition=user % PARTITIONS)
    producer.flush(30)


def feed(stream: Stream, items: int, rate: int, seconds: int) -> None:
    """Write events to the topic at a steady rate, timed by the clock."""
    ranks, _ = zipf_ranks(items, rate * seconds, 1.0, np.random.default_rng(0))
    producer, started = _producer(stream), time.time()
    for number, some in enumerate(np.array_split(ranks, round(seconds / _TICK))):
        time.sleep(max(0.0, started + number * _TICK - time.time()))
        _write(producer, stream.topic, some, time.time())


@contextmanager
def _stages(stream: Stream, settings: dict[str, Any]) -> "Iterator[dict[str, subprocess.Popen[bytes]]]":
    """Run the stream and what comes behind it, until all of them can take windows."""
    file = stream.folder / "stages.json"
    pipeline = stream.pipeline.model_dump(mode="json")
    file.write_text(json.dumps({"store": stream.store.url, "pipeline": pipeline, **settings}))
    with ExitStack() as stack:
        running = {}
        for name, words in _STAGES.items():
            log = stack.enter_context((stream.folder / f"{name}.log").open("wb"))
            command = [sys.executable, "-m", "weir", *words, "--config", str(file)]
            running[name] = stack.enter_context(subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log))
            stack.callback(running[name].terminate)
        train, driver = stream.folder / "train.log", stream.folder / "driver.log"
        wait_for(train, "ready to export", running["train"], train)
        stream.heal()
        assert stream.driver is not None  # noqa: S101 - heal has started it
        wait_for(driver, "runs as", stream.driver, driver)
        yield {**running, "driver": stream.driver}


def _cpu(stream: Stream, stages: "dict[str, subprocess.Popen[bytes]]") -> dict[str, float]:
    """Return the CPU seconds of each stage and engine with its descendants."""
    found = {name: sum(map(cpu_of, descendants(process.pid))) for name, process in stages.items()}
    engines = {name: sum(map(cpu_of, service.processes())) for name, service in stream.services.items()}
    return found | engines | {"producer": time.process_time()}


def _parts(stream: Stream, last: int) -> dict[str, F64]:
    """Return the seconds of each part of the way, for each window of the second half.

    The events of a window wait for its end in quantiles of their own.
    """
    commits, bundles = CommitLog(stream.store), BundleLog(stream.store)
    runs = {
        commit.sequence + place: (commit, pane)
        for commit in map(commits.get, range(commits.newest() + 1))
        for place, pane in enumerate(commit.panes)
    }
    found = [
        (*runs[one.sequence], one.freshness, bundles.manifest(one.freshness.bundle_version))
        for one in recorded(stream.store)
        if one.freshness is not None and one.sequence > last / 2
    ]
    end = np.array([pane.end_ms / 1000 for _, pane, _, _ in found])
    opened = np.array([started_at(commit.writer) for commit, _, _, _ in found])
    committed = np.array([commit.committed_at for commit, _, _, _ in found])
    made = np.array([bundle.created_at for _, _, _, bundle in found])
    servable = np.array([freshness.servable_at for _, _, freshness, _ in found])
    waits = [
        freshness.quantiles - (at - over) for (_, _, freshness, _), at, over in zip(found, servable, end, strict=True)
    ]
    return {
        "an event waits for the end of its window": np.concatenate([*waits, []]),
        "end of the window to the run that commits it": opened - end,
        "the run, to its commit": committed - opened,
        "commit to the bundle that has it": made - committed,
        "bundle to servable": servable - made,
    }


@app.command(help=__doc__)
def main(
    items: Annotated[int, typer.Option(help="items of the catalogue")] = 20_000,
    rate: Annotated[int, typer.Option(help="events per second")] = 500,
    seconds: Annotated[int, typer.Option(help="how long events come")] = 180,
    window: Annotated[int, typer.Option(help="seconds of a window")] = 10,
    assign: Annotated[
        list[str] | None, typer.Option("--set", help="a setting, such as stream.bundle_seconds=.5")
    ] = None,
) -> None:
    """Measure and print."""
    more, problems = assignments(assign or [])
    if problems:
        raise typer.BadParameter("; ".join(problems))
    short: dict[str, Any] = {"event_types": {}, "history_length": 50, "window_seconds": window, "sketch": {}}
    short |= more.get("pipeline", {})
    with (
        tempfile.TemporaryDirectory(prefix="weir-fresh-") as name,
        streaming(Path(name), _TOPIC, engine=more.get("stream", {}), **short) as stream,
    ):
        settings = _settings(more)
        _prepare(stream, items, settings["trainer"])
        with _stages(stream, settings) as stages:
            before, started = _cpu(stream, stages), time.monotonic()
            feed(stream, items, rate, seconds)
            elapsed, after = time.monotonic() - started, _cpu(stream, stages)
            [newest] = WindowLog(stream.store).newest(1)
            found = served(stream.store, newest.sequence)
        if not found:
            raise RuntimeError(f"nothing became servable; see\n{(stream.folder / 'driver.log').read_text()[-3000:]}")
        totals = np.concatenate([freshness.quantiles for _, freshness in found])
        parts = _parts(stream, newest.sequence)
    head("items", "events/s", "windows measured", "p50, s", "p95, s", "longest, s")
    row(f"{items:,}", f"{rate:,}", len(parts["bundle to servable"]), *quantiles(totals, 1))
    print_parts(parts)
    print()
    cores = {name: (after[name] - before[name]) / elapsed for name in after}
    head(*cores, "all")
    row(*(f"{value:.2f}" for value in (*cores.values(), sum(cores.values()))))
    print(f"load average {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    app()
