"""What the settings of a stream cost, and how long they make a commit wait: one row for each change of the defaults.

    OMP_NUM_THREADS=1 python -m benchmarks.stream_settings                                        # half an hour
    OMP_NUM_THREADS=1 python -m benchmarks.stream_settings --only checkpoint_seconds=1 --only bundle_seconds=1

A Kafka and a Flink of its own (`make tools` fetches them) run one job after the other, each on a store of its own.
CPU time is that of a job that reads a topic to its end, start of the workers included. Then a second job reads events
that come at a steady rate: seconds are those from the end of a window and its lateness to its commit, and the size of
the checkpoint is that of the last one.
"""

import logging
import tempfile
import time
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.harness import F64, command_line, head, row
from benchmarks.kafka import FAST, PARTITIONS, event_lines, load
from benchmarks.stream import CHANGES, Run
from benchmarks.stream_freshness import feed
from contracts import CommitLog, LogState, Store
from pipelines.stream.config import StreamConfig
from pipelines.stream.flink import FlinkClient
from tests.campaigns.stream_faults import Stream, streaming
from weir.config import assignments

app = command_line(__doc__)

_TRIED: Final = (
    "",
    "checkpoint_seconds=1",
    "checkpoint_seconds=10",
    "bundle_seconds=.05",
    "bundle_seconds=1",
    "bundle_batches=4",
    "batch_messages=2048",
    "batch_messages=32768",
    "options=[--state_backend=rocksdb]",
)
_LIVE: Final = {"window_seconds": 5, "allowed_lateness_seconds": 1, "idle_seconds": 2}
_ITEMS: Final = 20_000


@app.command(help=__doc__)
def main(
    events: Annotated[int, typer.Option(min=1000, help="read to the end of the topic")] = 500_000,
    rate: Annotated[int, typer.Option(help="events per second while commits are timed")] = 500,
    seconds: Annotated[int, typer.Option(min=40, help="how long these come")] = 90,
    only: Annotated[list[str] | None, typer.Option(help="a setting of the section stream; may be repeated")] = None,
) -> None:
    """Measure and print."""
    logging.disable(logging.WARNING)
    with (
        tempfile.TemporaryDirectory(prefix="weir-settings-") as name,
        streaming(Path(name), "whole", **CHANGES) as stream,
    ):
        # Long before they are used: partitions have no leader at first.
        tried = {text: f"live-{number}" for number, text in enumerate(only or _TRIED)}
        admin = AdminClient({"bootstrap.servers": stream.servers})
        for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in tried.values()]).values():
            future.result(30)
        load(Producer(FAST | {"bootstrap.servers": stream.servers}), stream.topic, event_lines(events))
        head("setting", "Python, us/event", "JVM, us/event", "to the commit, p50, s", "p95, s", "checkpoint, KB")
        for text, topic in tried.items():
            settings = _changed(stream.settings, text)
            python, jvm, _ = Run(stream, events, settings, "commits").measure()
            delays, size = _commits(stream, topic, settings, rate, seconds)
            cpu = (f"{1e6 * spent / events:.1f}" for spent in (python, jvm))
            row(
                text or "the defaults",
                *cpu,
                *(f"{at:.2f}" for at in np.quantile(delays, (0.5, 0.95))),
                round(size / 1e3),
            )


def _changed(settings: StreamConfig, text: str) -> StreamConfig:
    values, problems = assignments([f"stream.{text}"] if text else [])
    if problems:
        raise typer.BadParameter("; ".join(problems))
    return StreamConfig.model_validate(settings.model_dump() | values.get("stream", {}))


def _commits(before: Stream, topic: str, settings: StreamConfig, rate: int, seconds: int) -> tuple[F64, int]:
    """Return how long commits take while events come (s), and the size of the newest checkpoint (bytes)."""
    stream = Stream(before.folder, before.engines, topic, before.chance, _LIVE)
    run = Run(stream, 0, settings, "commits")
    job = run.submit()
    # Its workers have started when it commits.
    while not LogState.open(run.store).counts.events:
        feed(stream, _ITEMS, rate, 5)
    began = 1000 * time.time()
    feed(stream, _ITEMS, rate, seconds)
    client = FlinkClient(settings.flink_rest)
    [running] = [one for one in client.jobs() if one.state == "RUNNING"]
    size = client.checkpoints(running.id).bytes or 0
    job.cancel()
    return _delays(run.store, began), size


def _delays(store: Store, after_ms: float) -> F64:
    """Return how long the windows that began after a time waited for their commit."""
    log, late = CommitLog(store), _LIVE["allowed_lateness_seconds"]
    panes = [pane for number in range(log.newest() + 1) for pane in log.get(number).panes]
    return np.array([pane.committed_at - pane.end_ms / 1000 - late for pane in panes if pane.start_ms > after_ms])


if __name__ == "__main__":
    app()
