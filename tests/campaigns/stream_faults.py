"""A stream on a real Kafka and Flink, and the ways in which it is killed."""

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client import CollectorRegistry

from deploy.engines.flink import job_manager, job_server, task_manager
from deploy.engines.kafka import broker
from deploy.engines.pool import worker_pool
from deploy.engines.processes import EngineError, Service, start, stop
from deploy.engines.settings import HOST, EngineSettings
from tests.campaigns.hunter import size_of
from tests.campaigns.lives import ROOT
from tests.integration.flink_cluster import moved
from tests.integration.kafka_broker import NAME
from tests.integration.named_hosts import Hosts, possible_hosts
from tests.integration.test_kafka import wait_until
from tests.ports import free_port
from weir.contracts import CommitLog, EventClock, LogState, Store
from weir.pipelines.config import PipelineConfig
from weir.pipelines.metrics import TopicMetrics
from weir.pipelines.sources.kafka.source import TopicSource
from weir.pipelines.sources.plan import InHand
from weir.pipelines.stream.config import StreamConfig
from weir.pipelines.stream.flink_job import sources, submit

PATIENCE: Final = size_of(240, 900)
"""Seconds within which a commit has to follow any fault; how long it takes is reported, not tested."""


@dataclass
class Stream:
    """Engines, a topic, and a driver that commits it to a store."""

    folder: Path
    engines: EngineSettings
    topic: str
    chance: random.Random
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings of the pipeline other than these."""
    engine: dict[str, Any] = field(default_factory=dict)
    """Settings of the stream other than these."""
    hosts: Hosts | None = None
    """Where the broker has a name, under which it comes back at another address; None: it stays where it is."""
    named_port: int = field(default_factory=free_port)
    services: dict[str, Service] = field(init=False)
    driver: "subprocess.Popen[bytes] | None" = None

    def __post_init__(self) -> None:
        made = [make(self.engines) for make in (broker, job_manager, task_manager, job_server, worker_pool)]
        self.services = {service.name: service for service in made}
        self._addresses = cycle(("127.0.0.2", "127.0.0.3"))
        if self.hosts is not None:
            kafka, pool = self.services["kafka"], self.services["worker-pool"]
            self.services["kafka"] = replace(kafka, prepare=partial(self._prepare_named, kafka.prepare))
            self.services["worker-pool"] = replace(pool, command=self.hosts.command(pool.command))

    def _prepare_named(self, prepare: Callable[[], None]) -> None:
        """Give the broker another listener, with a name and the next address."""
        assert self.hosts is not None
        prepare()
        address, ports = next(self._addresses), self.engines
        plain, named = f"PLAINTEXT://{self.servers}", f"NAMED://{address}:{self.named_port}"
        # The last line of a name counts.
        with (self.engines.folder / "kafka/server.properties").open("a") as file:
            file.write(
                f"listeners={plain},{named},CONTROLLER://{HOST}:{ports.controller_port}\n"
                f"advertised.listeners={plain},NAMED://{NAME}:{self.named_port}\n"
                "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,NAMED:PLAINTEXT\n"
            )
        self.hosts.set({NAME: address})

    @property
    def servers(self) -> str:
        return f"{HOST}:{self.engines.kafka_port}"

    @property
    def store(self) -> Store:
        return Store(str(self.folder / "store"))

    @property
    def pipeline(self) -> PipelineConfig:
        settings: dict[str, Any] = {
            "log": f"kafka://{f'{NAME}:{self.named_port}' if self.hosts else self.servers}/{self.topic}",
            "event_types": {"click": "positive", "skip": "negative", "view": "ignore"},
            "window_seconds": 5,
            "allowed_lateness_seconds": 1,
            "idle_seconds": 2,
            "history_length": 20,
            "seen_items": 5000,
            "user_shards": 4,
            "sketch": {"width": 4096, "depth": 4},
            "metrics_port": 0,
        }
        return PipelineConfig(**settings | self.changes)

    @property
    def settings(self) -> StreamConfig:
        settings: dict[str, Any] = {
            "job_endpoint": f"{HOST}:{self.engines.job_port}",
            "artifact_endpoint": f"{HOST}:{self.engines.artifact_port}",
            "worker_pool": f"{HOST}:{self.engines.pool_port}",
            "flink_rest": f"http://{HOST}:{self.engines.flink_port}",
            "watch_seconds": 1.0,
        }
        return StreamConfig(**settings | self.engine)

    def heal(self) -> None:
        """Start what does not run, as a supervisor does."""
        start(list(self.services.values()), self.engines.start_seconds)
        if self.driver is None or self.driver.poll() is not None:
            with (self.folder / "driver.log").open("ab") as log:
                self.driver = subprocess.Popen(self._command(), cwd=ROOT, stdout=log, stderr=log)

    def _command(self) -> list[str]:
        settings = self.folder / "settings.json"
        settings.write_text(
            f'{{"pipeline": {self.pipeline.model_dump_json()}, "stream": {self.settings.model_dump_json()}}}'
        )
        command = [sys.executable, "-m", "weir", "stream", "--store", self.store.url, "--config", str(settings)]
        return self.hosts.command(command) if self.hosts else command

    def newest(self) -> int:
        """The number of the newest commit, -1 before the first."""
        return CommitLog(self.store).newest()

    def workers(self) -> list[int]:
        """The processes that run transforms: descendants of the pool."""
        return self.services["worker-pool"].processes()[1:]

    def another_job(self) -> None:
        """Start a second job on the same store, as somebody does by mistake on another machine."""
        here = self.pipeline.model_copy(update={"log": f"kafka://{self.servers}/{self.topic}"})
        source = TopicSource.open(here, TopicMetrics(CollectorRegistry()))
        state = LogState.open(self.store)
        found = source.identify(source.discover(), state, InHand())
        reading = sources(found, state, self.pipeline, self.settings, EventClock.of(self.store))
        submit(self.store, self.pipeline, self.settings, reading, "by-mistake")

    def end(self) -> None:
        """Stop everything."""
        if self.driver is not None:
            self.driver.kill()
            self.driver.wait(PATIENCE)
        stop(list(self.services.values()))

    # The faults.

    def kill_worker(self) -> None:
        # After a failure, Flink asks the pool for workers only once the job starts again.
        wait_until(lambda: bool(self.workers()), PATIENCE)
        _kill(self.chance.choice(self.workers()))

    def kill_committer(self) -> None:
        """Kill all workers as soon as one has a commit under way."""
        wait_until(lambda: any((self.folder / "store/state/runs").glob("*/started.json")), PATIENCE)
        for pid in self.workers():
            _kill(pid)

    def kill_driver(self) -> None:
        assert self.driver is not None
        self.driver.kill()
        self.driver.wait(PATIENCE)

    def kill_service(self, name: str) -> None:
        self.services[name].signal(signal.SIGKILL)
        wait_until(lambda: not self.services[name].processes(), PATIENCE)

    def kill_everything(self) -> None:
        for service in self.services.values():
            service.signal(signal.SIGKILL)
        self.kill_driver()
        for name in self.services:
            self.kill_service(name)

    def kill_job_manager(self) -> None:
        """Kill the JobManager; without high availability its TaskManager is lost with it."""
        self.kill_service("jobmanager")
        self.kill_service("taskmanager")

    def faults(self) -> dict[str, Callable[[], None]]:
        """Name -> fault, the most frequent ones of a real cluster first."""
        services = ("taskmanager", "worker-pool", "kafka", "job-server")
        return {
            "worker": self.kill_worker,
            "committer": self.kill_committer,
            **{name: partial(self.kill_service, name) for name in services},
            "jobmanager": self.kill_job_manager,
            "driver": self.kill_driver,
            "everything": self.kill_everything,
        }


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def streaming(
    folder: Path, topic: str, seed: int = 0, engine: dict[str, Any] | None = None, **changes: Any
) -> Iterator[Stream]:
    """Run engines, with a new topic of four partitions; skips the test where there are no engines.

    `heal` starts the stream.
    """
    engines = moved(folder / "engines").model_copy(update={"task_slots": 4, "start_seconds": PATIENCE})
    stream = Stream(folder, engines, topic, random.Random(seed), changes, engine or {}, possible_hosts(folder))
    try:
        start(list(stream.services.values()), engines.start_seconds)
        admin = AdminClient({"bootstrap.servers": stream.servers})
        for future in admin.create_topics([NewTopic(stream.topic, 4, 1)]).values():
            future.result(PATIENCE)
        yield stream
    finally:
        stream.end()


@contextmanager
def producing(stream: Stream, per_second: int) -> Iterator[None]:
    """Write events to the topic meanwhile; at the end the producer has sent all that it has made."""
    command = [sys.executable, "-m", "tests.campaigns.stream_truth", stream.servers, stream.topic, str(per_second)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(2 * PATIENCE)
    assert process.returncode == 0


def recovered(stream: Stream, fault: Callable[[], None]) -> float:
    """Cause a fault, start again what has ended, and return after how many seconds the next commit comes."""
    fault()
    since, started, healed = stream.newest(), time.monotonic(), -math.inf
    while stream.newest() <= since:
        assert time.monotonic() - started < PATIENCE, f"no commit follows {since}"
        # A supervisor looks again: a part may end because of another one, or of a machine too busy to start it.
        if time.monotonic() - healed > 1:
            with suppress(EngineError):
                stream.heal()
            healed = time.monotonic()
        time.sleep(0.05)
    return time.monotonic() - started
