"""A real Flink on loopback with its job server and worker pool, from what `make tools` fetches."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.engines.fetch import is_fetched, missing_tools
from deploy.engines.flink import job_manager, job_server, task_manager
from deploy.engines.pool import worker_pool
from deploy.engines.processes import Service, start, stop
from deploy.engines.settings import EngineSettings
from tests.ports import free_port
from weir.pipelines.stream.flink_client import FlinkClient


@dataclass(frozen=True)
class Cluster:
    """A running cluster: its settings, and its processes by name."""

    settings: EngineSettings
    services: dict[str, Service]

    @property
    def rest(self) -> str:
        return f"http://127.0.0.1:{self.settings.flink_port}"

    def client(self) -> FlinkClient:
        return FlinkClient(self.rest)

    def heal(self) -> None:
        """Start what was killed."""
        start(list(self.services.values()), self.settings.start_seconds)


def moved(folder: Path) -> EngineSettings:
    """Return settings whose ports nobody has; skips the test where there are no engines."""
    settings = EngineSettings(folder=folder)
    if "java" in missing_tools() or not is_fetched(settings):
        pytest.skip("no Kafka and Flink: `make tools` fetches them where there are Java and Maven")
    ports = [name for name in EngineSettings.model_fields if name.endswith("_port")]
    return settings.model_copy(update={name: free_port() for name in ports})


@contextmanager
def flink(folder: Path) -> Iterator[Cluster]:
    """Run a cluster with its files in a folder."""
    settings = moved(folder)
    services = [make(settings) for make in (job_manager, task_manager, job_server, worker_pool)]
    try:
        start(services, settings.start_seconds)
        yield Cluster(settings, {service.name: service for service in services})
    finally:
        stop(services)
