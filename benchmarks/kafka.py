"""Events per CPU-second from a Kafka topic: into Arrow, by format, and through the whole bounded driver, beside files.

``python -m benchmarks.kafka [--events N]`` runs a broker of its own (`make tools` fetches it). All of them read the
same rows in one process, one after the other; CPU time is that of this process with its threads, so without the broker.
"""

import json
import logging
import tempfile
import time
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from confluent_kafka import Producer
from fastavro import parse_schema, schemaless_writer
from prometheus_client import CollectorRegistry

from benchmarks.harness import head, row, zipf_ranks
from tests.integration.kafka_broker import Broker, kafka
from tests.pipelines.kafka.schema_registry import schema_registry
from weir.contracts import SourceSpan, Store
from weir.log.v1.interaction_pb2 import Interaction
from weir.pipelines.config import PipelineConfig
from weir.pipelines.ingest import ingest
from weir.pipelines.kafka.address import Topic
from weir.pipelines.kafka.client import TopicClient
from weir.pipelines.kafka.consume import RangeReader
from weir.pipelines.kafka.ranges import plan_ranges
from weir.pipelines.plan import Seen
from weir.readers import Validator

_TOPIC: Final = "events"
PARTITIONS: Final = 4
FAST: Final[dict[str, str | int]] = {"queue.buffering.max.messages": 200_000, "compression.type": "lz4"}
_ORIGIN: Final = 1_700_000_000
_AVRO: Final = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": name, "type": "long" if name == "timestamp" else "string"}
        for name in ("user_id", "item_id", "timestamp", "event_id")
    ],
}
_PARSED: Final = parse_schema(_AVRO)


def main(events: Annotated[int, typer.Option(min=1000, help="number of events")] = 1_000_000) -> None:
    """Measure, and print a table."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name, kafka(_folder(name, "kafka")) as broker:
        folder = Path(name)
        lines = event_lines(events)
        (folder / "log.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        broker.create(_TOPIC, PARTITIONS)
        load(broker.producer(**FAST), _TOPIC, lines)
        files = PipelineConfig(log=str(folder / "log.jsonl"), metrics_port=0)
        topic = files.model_copy(update={"log": broker.url(_TOPIC)})
        head("from", "to", "CPU s", "events per CPU-second")
        _measure("topic", "rows as they are", events, lambda: consume(topic, validate=False))
        _measure("topic", "Arrow", events, lambda: consume(topic, validate=True))
        _measure_formats(broker, topic, lines)
        from_files = _measure("JSON Lines file", "committed windows", events, lambda: _ingest(files, folder / "files"))
        from_topic = _measure("topic", "committed windows", events, lambda: _ingest(topic, folder / "topic"))
        print(f"\nwhole driver, topic / file: {from_topic / from_files:.2f}")


def _measure_formats(broker: Broker, topic: PipelineConfig, lines: list[bytes]) -> None:
    """Print a row for each format that is spelled as JSON first."""
    rows = [json.loads(line) for line in lines]
    with schema_registry() as registry:
        number = registry.register(_TOPIC, {"schema": json.dumps(_AVRO)})
        formats = {
            "protobuf": ([_protobuf(one) for one in rows], {"format": "protobuf"}),
            "avro": ([_avro(one, number) for one in rows], {"format": "avro", "registry": {"url": registry.url}}),
        }
        for name, (values, settings) in formats.items():
            broker.create(name, PARTITIONS)
            load(broker.producer(**FAST), name, values)
            plain = topic.model_dump() | {"log": broker.url(name), "kafka": settings}
            config = PipelineConfig.model_validate(plain)
            _measure(f"topic of {name}", "Arrow", len(values), partial(consume, config, validate=True))


def _protobuf(event: dict[str, Any]) -> bytes:
    fields = {name: value for name, value in event.items() if name != "timestamp"}
    return Interaction(timestamp_ms=1000 * event["timestamp"], **fields).SerializeToString()


def _avro(event: dict[str, Any], number: int) -> bytes:
    content = BytesIO()
    schemaless_writer(content, _PARSED, event)
    return b"\0" + number.to_bytes(4, "big") + content.getvalue()


def _folder(*parts: str) -> Path:
    folder = Path(*parts)
    folder.mkdir()
    return folder


def event_lines(events: int) -> list[bytes]:
    """Return events of about 120 bytes over 5 days, in order of time."""
    rng = np.random.default_rng(0)
    items, users = zipf_ranks(100_000, events, 1.05, rng)[0], rng.integers(0, 50_000, events)
    seconds = _ORIGIN + np.arange(events) * 432_000 // events
    return [
        json.dumps(
            {"user_id": f"u{user}", "item_id": f"item-{item}", "timestamp": second, "event_id": f"e{number}"}
        ).encode()
        for number, (user, item, second) in enumerate(
            zip(users.tolist(), items.tolist(), seconds.tolist(), strict=True)
        )
    ]


def load(producer: Producer, topic: str, lines: list[bytes]) -> None:
    """Write lines to the partitions of a topic in turn."""
    for number, line in enumerate(lines):
        while True:
            try:
                producer.produce(topic, line, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(300) == 0  # noqa: S101 - or nothing is measured


def consume(config: PipelineConfig, *, validate: bool) -> int:
    """Read the whole topic; return the number of rows."""
    found = TopicClient(Topic.parse(config.log), config.kafka).partitions()
    rows, validator = 0, Validator(config)
    starts = {one.key: SourceSpan(start=0, stop=0, resume=0, size=0) for one in found}
    for wanted in plan_ranges(found, Seen(starts), 1 << 60):
        for block in RangeReader(wanted, config).blocks():
            rows += (
                len(validator.validate(block)[0].rows)
                if validate
                else len(block.content.positions if block.content else ())
            )
    return rows


def _ingest(config: PipelineConfig, store: Path) -> int:
    return ingest(Store(str(store)), config, registry=CollectorRegistry()).valid


def _measure(source: str, target: str, events: int, read: Callable[[], int]) -> float:
    """Print a row; return events per CPU-second."""
    started = time.process_time()
    found = read()
    seconds = time.process_time() - started
    assert found == events, f"{found} of {events} rows"  # noqa: S101 - or something else was measured
    row(source, target, f"{seconds:.2f}", f"{events / seconds:,.0f}")
    return events / seconds


if __name__ == "__main__":
    typer.run(main)
