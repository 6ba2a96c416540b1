"""A topic to read, and what a bounded run makes of it."""

import secrets
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from tests.integration.kafka_broker import Broker
from tests.pipelines import support
from tests.pipelines.support import ORIGIN, Event
from weir.contracts import LogState, Store
from weir.pipelines.batch.ingest import IngestSummary, ingest
from weir.pipelines.config import PipelineConfig
from weir.pipelines.sources.source import WINDOWS


def new_topic(broker: Broker, partitions: int = 1, **settings: str) -> str:
    name = f"clicks-{secrets.token_hex(4)}"
    broker.create(name, partitions, **settings)
    return name


def config(folder: Path, broker: Broker, topic: str, **changes: Any) -> PipelineConfig:
    kafka = {"timeout_seconds": 5, **changes.pop("kafka", {})}
    ways = {"chunk_rows": 50, "chunk_bytes": 4000, "log": broker.url(topic), "kafka": kafka}
    return support.config(folder, **ways | changes)


def values(seconds: range, tag: str = "e", user: str = "u") -> list[bytes | None]:
    """One valid event for each second."""
    return [line(event) for event in events_of(seconds, tag, user)]


def events_of(seconds: range, tag: str = "e", user: str = "u") -> list[Event]:
    return [Event(f"{user}{second % 3}", f"i{second % 7}", second, event_id=f"{tag}-{second}") for second in seconds]


def send(broker: Broker, topic: str, seconds: range, tag: str, partition: int) -> list[Event]:
    """Write one valid event for each second; returns them."""
    broker.send(topic, values(seconds, tag), partition)
    return events_of(seconds, tag)


def line(event: Event) -> bytes:
    return event.line().rstrip("\n").encode()


def now(second: int = 100) -> int:
    """A message timestamp (ms) at which events up to a second may have happened."""
    return 1000 * (ORIGIN + second)


def once(store: Store, settings: PipelineConfig, registry: CollectorRegistry | None = None) -> IngestSummary:
    return ingest(store, settings, registry=registry or CollectorRegistry())


def spans(store: Store) -> dict[int, tuple[int, int]]:
    """Partition number -> (resume, stop) of the newest generation that commits name."""
    return {
        int(key.rpartition("/")[2].partition("@")[0]): (span.resume, span.stop)
        for key, span in sorted(LogState.open(store).sources.items())
        if key != WINDOWS
    }
