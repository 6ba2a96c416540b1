"""Clients of a broker that comes back elsewhere: ``python -m tests.integration.moved_broker LOG`` prints what they do.

It is run where the broker has a name (`tests.integration.named_hosts`). To each client here, an address is good for a
day: none of them finds the broker again by itself, so that only a new client does. Each prints its name and how far it
is after each step.
"""

import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from deploy.engines.settings import ROOT
from tests.integration.named_hosts import Hosts
from tests.pipelines import support
from tests.pipelines.support import Event
from weir.contracts import EventClock, LogState, Store
from weir.demo.live import produce
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka_config import BrokerAwayError, Topic
from weir.pipelines.metrics import TopicMetrics
from weir.pipelines.sources.kafka.source import TopicSource
from weir.pipelines.sources.plan import InHand
from weir.pipelines.stream.config import StreamConfig
from weir.pipelines.stream.flink_job import commit_starts, sources
from weir.pipelines.stream.reader import PartitionReader


@dataclass
class Clients:
    """The clients as a process of their own, and how far each is."""

    process: "subprocess.Popen[str]"
    log: Path
    reached: dict[str, int] = field(default_factory=dict)

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            name, value = json.loads(line)
            self.reached[name] = value

    def wait_for(self, **wanted: int) -> None:
        """Wait until each of these clients is so far."""
        end = time.monotonic() + 60
        while any(self.reached.get(name, 0) < value for name, value in wanted.items()):
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < end, f"{self.reached} of {wanted}: {self.log.read_text()[-3000:]}"
            time.sleep(0.1)


@contextmanager
def running(hosts: Hosts, log: str, folder: Path) -> Iterator[Clients]:
    """Run the clients where `hosts` resolves names."""
    command = hosts.command([sys.executable, "-m", "tests.integration.moved_broker", log])
    said = folder / "clients.log"
    with said.open("w") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT
        )
    clients = Clients(process, said)
    threading.Thread(target=clients.listen, daemon=True).start()
    try:
        yield clients
    finally:
        process.kill()
        process.wait(30)


def settings(folder: Path, log: str) -> PipelineConfig:
    kafka = {"timeout_seconds": 3, "options": {"broker.address.ttl": 86_400_000}}
    return support.config(folder, log=log, kafka=kafka, idle_seconds=1, poll_seconds=0.1, window_seconds=5)


def say(name: str, value: int) -> None:
    sys.stdout.write(json.dumps([name, value]) + "\n")
    sys.stdout.flush()


def read(folder: Path, log: str) -> None:
    """Read the first partition as a worker of a stream does; say how far."""
    config, store = settings(folder, log), Store(str(folder / "store"))
    source, state = TopicSource.open(config, TopicMetrics(CollectorRegistry())), LogState.open(store)
    partitions = source.discover()
    commit_starts(store, source, state, partitions)
    found = source.identify(partitions, state, InHand())
    [first, *_] = sources(found, state, config, StreamConfig(), EventClock.of(store))
    reader, expected = first.create_reader(None, None), 0
    assert isinstance(reader, PartitionReader)
    while True:
        if reader.advance():
            batch = reader.get_current()
            assert batch.start == expected, "nothing is lost or read twice"
            expected = batch.stop
            say("reader", expected)
        time.sleep(0.05)


def look(folder: Path, log: str) -> None:
    """List the topic as the driver of a stream does; say how many messages it has."""
    source = TopicSource.open(settings(folder, log), TopicMetrics(CollectorRegistry()))
    while True:
        try:
            say("driver", sum(one.size for one in source.discover()))
        except BrokerAwayError as error:
            logging.getLogger("driver").info("%s", error)
        time.sleep(0.3)


def follow(folder: Path, log: str) -> None:
    """Follow the topic; say how many events are committed."""
    total = 0

    def report(summary: object) -> None:
        nonlocal total
        total += summary.valid  # type: ignore[attr-defined]
        say("follower", total)

    ingest(
        Store(str(folder / "store")),
        settings(folder, log),
        follow=True,
        report=report,
        registry=CollectorRegistry(),
        stop=threading.Event(),
    )


def send(folder: Path, log: str) -> None:
    """Send events to another topic, which counts them."""
    lines = (Event("u", f"i{n}", n, event_id=f"sent-{n}").line().rstrip().encode() for n in range(10**9))
    produce(Topic.parse(f"{log}-sent"), settings(folder, log).kafka, lines, 20, threading.Event())


def main(log: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    roles: dict[str, Callable[[Path, str], None]] = {
        "reader": read,
        "driver": look,
        "follower": follow,
        "producer": send,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, role in roles.items():
            (Path(folder) / name).mkdir()
            threading.Thread(target=partial(role, Path(folder) / name, log), daemon=True, name=name).start()
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
