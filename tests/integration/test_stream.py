"""`weir stream` with a real broker and a real Flink: ended, killed and replaced, it commits every event once."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import isnan
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.flink_cluster import Cluster
from tests.integration.kafka_broker import Broker
from tests.pipelines import support
from tests.pipelines.sources.kafka.support import config, line, new_topic
from tests.pipelines.support import Event
from tests.ports import free_port
from weir.contracts import LogState, Store
from weir.contracts.verification import verify
from weir.pipelines.stream.config import StreamConfig
from weir.pipelines.stream.driver import NoTopicError, stream
from weir.pipelines.stream.flink_client import FlinkAwayError, job_name

PATIENCE_SECONDS = 240
OVER = {"FINISHED", "CANCELED", "FAILED"}


@dataclass
class Stream:
    """A store, the topic that is read into it, and what was written to the topic."""

    folder: Path
    broker: Broker
    cluster: Cluster
    topic: str
    chance: random.Random = field(default_factory=lambda: random.Random(5))
    written: list[Event] = field(default_factory=list)
    refused: int = 0
    metrics_port: int = field(default_factory=free_port)

    @property
    def store(self) -> Store:
        return Store(str(self.folder / "store"))

    def settings(self) -> Path:
        """Write the settings; return their file."""
        ways = {"idle_seconds": 1, "allowed_lateness_seconds": 2, "metrics_port": self.metrics_port}
        pipeline = config(self.folder, self.broker, self.topic, chunk_rows=500, chunk_bytes=100_000, **ways)
        ports = self.cluster.settings
        engine = {
            "job_endpoint": f"127.0.0.1:{ports.job_port}",
            "artifact_endpoint": f"127.0.0.1:{ports.artifact_port}",
            "worker_pool": f"127.0.0.1:{ports.pool_port}",
            "flink_rest": self.cluster.rest,
            "checkpoint_seconds": 1,
            "watch_seconds": 0.5,
            "batch_messages": 200,
        }
        file = self.folder / "weir.yaml"
        sections = {"store": str(self.folder / "store"), "pipeline": pipeline.model_dump(mode="json"), "stream": engine}
        file.write_text(json.dumps(sections))
        return file

    @contextmanager
    def driver(self) -> Iterator["subprocess.Popen[str]"]:
        """Run `weir stream`; it is killed at the end if it still runs."""
        command = [sys.executable, "-m", "weir", "stream", "--config", str(self.settings()), "--json"]
        with (self.folder / "driver.log").open("a") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait(30)

    def end(self, process: "subprocess.Popen[str]") -> dict[str, int]:
        """Ask a driver to end; returns what it printed."""
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=90)
        assert process.returncode == 0, self.said()
        found: dict[str, int] = json.loads(printed)
        return found

    def said(self) -> str:
        return (self.folder / "driver.log").read_text()[-3000:]

    def send(self, seconds: range, tag: str, partitions: tuple[int, ...] = (0, 1, 2)) -> None:
        """Write an event for each second to some partitions, with duplicates, late ones and messages that are none."""
        for partition in partitions:
            events = [
                Event(
                    f"u{second % 11}",
                    f"i{(second + partition) % 13}",
                    max(0, second - (40 if self.chance.random() < 0.02 else 0)),
                    event_id=f"{tag}-{partition}-{second}",
                )
                for second in seconds
            ]
            events += [replace(event) for event in events if self.chance.random() < 0.02]
            values: list[bytes | None] = [line(event) for event in events]
            for poison in (b"not json", b"{}", None):
                values.insert(self.chance.randrange(len(values)), poison)
            self.refused += 2
            self.broker.send(self.topic, values, partition)
            self.written += events

    def wait(self, process: "subprocess.Popen[str]", is_true: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not is_true():
            assert process.poll() is None, self.said()
            assert time.monotonic() < end, f"{LogState.open(self.store).counts} of {len(self.written)}: {self.said()}"
            time.sleep(0.2)

    def has_all(self) -> bool:
        return support.stored_events(self.store) == support.expected_events(self.written)

    def has_some(self) -> bool:
        return LogState.open(self.store).counts.events > 0

    def jobs(self) -> list[str]:
        """The ids of the jobs of this store that run."""
        name = job_name(self.store)
        return [job.id for job in self.cluster.client().jobs() if job.name == name and job.state not in OVER]

    def check(self) -> None:
        """All that was written is committed once, and the store is in order."""
        assert self.has_all()
        assert len(support.dead_letters(self.store)) == self.refused
        support.check_counts(self.store)
        assert verify(self.store).findings == []

    def metric(self, name: str, **labels: str) -> float | None:
        import urllib.request  # noqa: PLC0415

        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            for family in text_string_to_metric_families(answer.read().decode()):
                for sample in family.samples:
                    if sample.name == name and sample.labels == labels:
                        return sample.value
        return None


@pytest.fixture
def running(tmp_path: Path, broker: Broker, flink: Cluster) -> Iterator[Stream]:
    found = Stream(tmp_path, broker, flink, new_topic(broker, 4))
    yield found
    for job in found.jobs():
        flink.client().cancel(job)


@pytest.mark.timeout(600)
def test_a_stream_that_is_ended_killed_and_replaced_commits_every_event_once(running: Stream) -> None:
    running.send(range(600), "a")
    with running.driver() as process:
        running.wait(process, running.has_all)
        running.wait(process, lambda: running.metric("weir_pipeline_unread_offsets", partition="0") == 0)
        assert running.metric("weir_pipeline_job_state", state="running") == 1
        assert running.metric("weir_pipeline_dropped_late_rows_total") == 0
        answered = partial(running.metric, "weir_pipeline_partition_unanswered_since_timestamp_seconds", partition="0")
        running.wait(process, lambda: answered() == 0)
        running.wait(process, lambda: isnan(running.metric("weir_pipeline_uncommitted_since_timestamp_seconds") or 0))
        summary = running.end(process)
        assert summary["valid"] == LogState.open(running.store).counts.events
        assert summary["dead"] == running.refused
    assert running.jobs() == [], "a driver that ends takes its job with it"
    running.check()
    running.send(range(600, 900), "b")
    with running.driver() as process:
        running.wait(process, running.has_all)
        [left] = running.jobs()
        process.kill()
        process.wait(30)
    assert running.jobs() == [left], "a driver that is killed leaves its job"
    running.send(range(900, 1000), "c")
    with running.driver() as process:
        # The other partition was idle until now.
        running.send(range(1000, 1100), "d", (0, 1, 2, 3))
        running.wait(process, running.has_all)
        # All may be committed by the job that was left, before the driver has replaced it.
        running.wait(process, lambda: [job != left for job in running.jobs()] == [True])
        running.end(process)
    running.check()


@pytest.mark.timeout(600)
def test_a_partition_that_the_topic_gets_is_read_by_another_job(running: Stream) -> None:
    running.send(range(200), "a")
    with running.driver() as process:
        running.wait(process, running.has_all)
        before = running.jobs()
        running.broker.add_partitions(running.topic, 5)
        running.send(range(200, 300), "b", (0, 4))
        running.wait(process, running.has_all)
        assert running.jobs() != before
        running.end(process)
    running.check()


@pytest.mark.timeout(600)
def test_a_topic_that_is_created_anew_is_read_from_its_beginning(running: Stream) -> None:
    running.send(range(200), "a")
    with running.driver() as process:
        running.wait(process, running.has_all)
        running.broker.delete(running.topic)
        running.broker.create(running.topic, 2)
        running.send(range(200, 300), "b", (0, 1))
        running.wait(process, running.has_all)
        running.end(process)
    running.check()


@pytest.mark.timeout(600)
def test_a_job_that_somebody_cancels_ends_its_driver_with_an_error(running: Stream) -> None:
    running.send(range(50), "a")
    with running.driver() as process:
        running.wait(process, running.has_some)
        second = subprocess.run(process.args, capture_output=True, text=True, timeout=60, check=False)  # type: ignore[call-overload]
        assert (second.returncode, "another pipeline drives this store" in second.stderr) == (1, True)
        running.cluster.client().cancel(running.jobs()[0])
        assert process.wait(60) == 1
    assert "the job was canceled, and not by this driver" in running.said()


def test_without_flink_a_stream_says_so(tmp_path: Path, broker: Broker) -> None:
    settings = config(tmp_path, broker, new_topic(broker))
    away = StreamConfig(flink_rest=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(FlinkAwayError, match=away.flink_rest):
        stream(Store(str(tmp_path / "store")), settings, away, registry=CollectorRegistry())


def test_files_are_no_stream(tmp_path: Path) -> None:
    with pytest.raises(NoTopicError, match="a stream reads a topic") as error:
        stream(Store(str(tmp_path / "store")), support.config(tmp_path), StreamConfig(), registry=CollectorRegistry())
    assert "weir ingest --follow" in error.value.explain()[0]
