"""Events per CPU-second from a Kafka topic: on Flink and in the bounded driver, and by the format of the messages.

    python -m benchmarks.stream throughput    # `weir stream` on Flink, beside its source alone and the bounded driver
    python -m benchmarks.stream formats       # into Arrow, by format, and the bounded driver beside files
    python -m benchmarks.stream costs         # each step of a worker alone, in one process, without any engine

The first two run a Kafka of their own, `throughput` a Flink too (`make tools` fetches both). CPU is that of Python,
with its Kafka client and without the broker; that of Flink's TaskManager is beside it.
"""

import json
import logging
import pickle
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Final

import apache_beam as beam
import numpy as np
import typer
from apache_beam.options.pipeline_options import PipelineOptions
from confluent_kafka import Producer
from fastavro import parse_schema, schemaless_writer
from prometheus_client import CollectorRegistry

from benchmarks.harness import command_line, cpu_of_call, cpu_seconds, head, row, zipf_ranks
from tests.campaigns.stream_faults import Stream, streaming
from tests.integration.kafka_broker import Broker, kafka
from tests.pipelines.sources.kafka.schema_registry import schema_registry
from weir.contracts import CommitLog, EventClock, LogState, SourceSpan, Store
from weir.contracts.base import columns
from weir.log.v1.interaction_pb2 import Interaction
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.pipelines.histories.compaction import HistoryKeeper
from weir.pipelines.kafka_config import Topic
from weir.pipelines.layout import open_layout
from weir.pipelines.metrics import TopicMetrics
from weir.pipelines.runs.run_registry import append
from weir.pipelines.sources.kafka.client import TopicClient
from weir.pipelines.sources.kafka.consume import RangeReader, plan_ranges
from weir.pipelines.sources.kafka.source import TopicSource
from weir.pipelines.sources.plan import InHand, Seen
from weir.pipelines.stream.committer import commit_window
from weir.pipelines.stream.config import StreamConfig
from weir.pipelines.stream.flink_client import FlinkClient, job_name, pipeline_options
from weir.pipelines.stream.flink_job import FlinkJob, commit_starts, sources, submit
from weir.pipelines.stream.flink_metrics import FlinkMetrics
from weir.pipelines.stream.reader import Batch, ReadPartitions
from weir.pipelines.stream.slices import slices_of
from weir.readers import Block, BlockId, Lines, Validator

app = command_line(__doc__)

Events = Annotated[int, typer.Option(min=1000, help="number of events")]
_TOPIC: Final = "events"
PARTITIONS: Final = 4
QUEUED: Final = 200_000
FAST: Final[dict[str, str | int]] = {"queue.buffering.max.messages": QUEUED, "compression.type": "lz4"}
_BATCH: Final = 8192
CHANGES: Final[dict[str, Any]] = {"window_seconds": 21_600, "event_types": {}}
"""The events are of five days: twenty windows."""
_WAIT_SECONDS: Final = 900.0
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


class CountRows(beam.DoFn):
    """Appends the number of rows of each batch to a file."""

    def __init__(self, file: str) -> None:
        self._file = file

    def process(self, element: Batch) -> None:
        """Count one batch."""
        with Path(self._file).open("a") as file:
            file.write(f"{element.rows.num_rows}\n")


@app.command()
def throughput(
    events: Events = 2_000_000,
    parallelism: Annotated[list[int] | None, typer.Option(help="of the chain on Flink; may be repeated")] = None,
) -> None:
    """Measure the chain on Flink and in the bounded driver, each beside its own source alone."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name, streaming(Path(name), _TOPIC, **CHANGES) as stream:
        load(Producer(FAST | {"bootstrap.servers": stream.servers}), _TOPIC, event_lines(events))
        names = "driver, source and, parallelism, Python CPU s, JVM CPU s, events per CPU-second, ratio, wall s"
        head(*names.split(", "))
        # The first job loads classes and modules, which the others find loaded.
        Run(stream, events, stream.settings, "nothing").measure()
        alone = Run(stream, events, stream.settings, "nothing").on_flink()
        for degree in parallelism or [1, 2, 4]:
            settings = stream.settings.model_copy(update={"parallelism": degree})
            Run(stream, events, settings, "commits").on_flink(alone)
        config = stream.pipeline
        alone = _here("nothing", events, lambda: consume(config, events, validate=True))
        _here("commits", events, lambda: _ingest(config, Path(name) / "bounded", events), alone)


@dataclass
class Run:
    """A job with its own store, from its start to the last event of the topic; `what` follows the source."""

    stream: Stream
    events: int
    settings: StreamConfig
    what: str

    def __post_init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=self.stream.folder))
        self.store = Store(str(self.folder / "store"))
        self.counted = self.folder / "counted"
        self.counted.touch()

    def on_flink(self, alone: float | None = None) -> float:
        """Measure it, print a row, and return events per CPU-second of Python."""
        python, jvm, wall = self.measure()
        row("Flink", self.what, self.settings.parallelism, *_figures(self.events, python, alone, jvm), f"{wall:.0f}")
        return self.events / python

    def measure(self) -> tuple[float, float, float]:
        """Return the CPU seconds of Python and of the TaskManager, and the wall time."""
        before, started = self._cpu(), time.monotonic()
        job = self.submit()
        while self._done() < self.events:
            assert time.monotonic() - started < _WAIT_SECONDS, f"{self._done()} events"  # noqa: S101 - nothing is measured
            time.sleep(0.1)
        # Processes that have ended are the workers of the job before.
        python, jvm = (
            sum(seconds - old.get(pid, 0.0) for pid, seconds in new.items())
            for old, new in zip(before, self._cpu(), strict=True)
        )
        wall = time.monotonic() - started
        job.cancel()
        return python, jvm, wall

    def _cpu(self) -> list[dict[int, float]]:
        """Return the CPU seconds of each process of the worker pool, and of the TaskManager."""
        services = self.stream.services
        return [{pid: cpu_of(pid) for pid in services[name].processes()} for name in ("worker-pool", "taskmanager")]

    def _done(self) -> int:
        if self.what == "commits":
            return LogState.open(self.store).counts.events
        return sum(map(int, self.counted.read_text().split()))

    def submit(self) -> FlinkJob:
        """Start the job, and wait until Flink has it."""
        config, settings = self.stream.pipeline, self.settings
        open_layout(self.store, config)
        source, state = TopicSource.open(config, TopicMetrics(CollectorRegistry())), LogState.open(self.store)
        listed = source.discover()
        commit_starts(self.store, source, state, listed)
        reading = sources(source.identify(listed, state, InHand()), state, config, settings, EventClock.of(self.store))
        name = job_name(self.store)
        if self.what == "commits":
            submit(self.store, config, settings, reading, name)
        else:
            pipeline = beam.Pipeline(options=PipelineOptions(pipeline_options(settings, name)))
            _ = pipeline | ReadPartitions(reading, settings) | beam.ParDo(CountRows(str(self.counted)))
            pipeline.run()
        job = FlinkJob(FlinkClient(settings.flink_rest), name, FlinkMetrics(CollectorRegistry()))
        job.appear()
        return job


def _here(what: str, events: int, read: Callable[[], None], alone: float | None = None) -> float:
    wall, python = time.monotonic(), cpu_of_call(read)
    row("bounded", what, 1, *_figures(events, python, alone), f"{time.monotonic() - wall:.0f}")
    return events / python


def _figures(events: int, python: float, alone: float | None, jvm: float = 0.0) -> list[str]:
    rate = events / python
    return [f"{python:.1f}", f"{jvm:.1f}", f"{rate:,.0f}", "" if alone is None else f"{rate / alone:.2f}"]


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process, 0 where it has ended."""
    try:
        return cpu_seconds(pid)
    except FileNotFoundError:
        return 0.0


@app.command()
def costs(events: Events = 500_000) -> None:
    """Measure each step of the chain alone, in one process: microseconds of CPU per event."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        store, config = Store(f"{name}/store"), PipelineConfig(log="topic", **CHANGES, metrics_port=0)
        open_layout(store, config)
        append(CommitLog(store), LogState.open(store), sources={"p": SourceSpan(start=0, stop=0, resume=0, size=0)})
        lines, spent = event_lines(events), defaultdict[str, float](float)
        windows, watermark = defaultdict[int, list[bytes]](list), 0
        keeper = HistoryKeeper(store, config, LogState.open(store))
        for start in range(0, events, _BATCH):
            stop = min(start + _BATCH, events)
            with _timed(spent, "decode and validate"):
                content = Lines(lines[start:stop], np.arange(start, stop))
                rows = Validator(config).validate(Block(BlockId("p", start), content, (), stop))[0].rows
            batch = Batch("p", "job", start, stop, watermark, stop, rows, (), np.empty(0, np.int64))
            with _timed(spent, "cut into slices"):
                found = list(slices_of(batch, config.window_ms, ""))
            with _timed(spent, "slices to bytes"):
                for start_ms, one in found:
                    windows[start_ms].append(pickle.dumps(one))
            watermark = int(batch.rows.column(columns.TIMESTAMP).to_numpy().max())
        for start_ms in sorted(windows):
            with _timed(spent, "slices from bytes"):
                slices = [pickle.loads(one) for one in windows[start_ms]]  # noqa: S301 - made above
            with _timed(spent, "commit"):
                commit_window(store, config, start_ms, slices)
            with _timed(spent, "merge histories"):
                keeper.state.catch_up(CommitLog(store))
                keeper.settle()
        assert LogState.open(store).counts.events == events  # noqa: S101 - or something else was measured
        head("step", "us of CPU per event")
        for step, seconds in [*spent.items(), ("together", sum(spent.values()))]:
            row(step, f"{1e6 * seconds / events:.2f}")


@contextmanager
def _timed(spent: dict[str, float], step: str) -> Iterator[None]:
    started = time.process_time()
    yield
    spent[step] += time.process_time() - started


@app.command()
def formats(events: Events = 1_000_000) -> None:
    """Measure what one process reads of a topic, by format, and the bounded driver from a topic and from a file."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        folder, lines = Path(name), event_lines(events)
        (folder / "kafka").mkdir()
        (folder / "log.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        with kafka(folder / "kafka") as broker:
            broker.create(_TOPIC, PARTITIONS)
            load(broker.producer(**FAST), _TOPIC, lines)
            files = PipelineConfig(log=str(folder / "log.jsonl"), metrics_port=0)
            topic = files.model_copy(update={"log": broker.url(_TOPIC)})
            head("from", "to", "CPU s", "events per CPU-second")
            _measure("topic", "rows as they are", events, lambda: consume(topic, events, validate=False))
            _measure("topic", "Arrow", events, lambda: consume(topic, events, validate=True))
            _measure_formats(broker, topic, lines)
            stores = {"JSON Lines file": files, "topic": topic}
            file_rate, topic_rate = (
                _measure(source, "committed windows", events, partial(_ingest, config, folder / source, events))
                for source, config in stores.items()
            )
            print(f"\nwhole driver, topic / file: {topic_rate / file_rate:.2f}")


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
            _measure(f"topic of {name}", "Arrow", len(values), partial(consume, config, len(values), validate=True))


def _protobuf(event: dict[str, Any]) -> bytes:
    fields = {name: value for name, value in event.items() if name != "timestamp"}
    return Interaction(timestamp_ms=1000 * event["timestamp"], **fields).SerializeToString()


def _avro(event: dict[str, Any], number: int) -> bytes:
    content = BytesIO()
    schemaless_writer(content, _PARSED, event)
    return b"\0" + number.to_bytes(4, "big") + content.getvalue()


def _measure(source: str, target: str, events: int, read: Callable[[], None]) -> float:
    """Print a row; return events per CPU-second."""
    seconds = cpu_of_call(read)
    row(source, target, f"{seconds:.2f}", f"{events / seconds:,.0f}")
    return events / seconds


def _ingest(config: PipelineConfig, store: Path, events: int) -> None:
    """Run the bounded driver on everything that is there."""
    found = ingest(Store(str(store)), config, registry=CollectorRegistry()).valid
    assert found == events, f"{found} of {events} events"  # noqa: S101 - or something else was measured


def event_lines(events: int) -> list[bytes]:
    """Return events of about 120 bytes over 5 days, in order of time."""
    rng = np.random.default_rng(0)
    items, users = zipf_ranks(100_000, events, 1.05, rng)[0], rng.integers(0, 50_000, events)
    seconds = _ORIGIN + np.arange(events) * 432_000 // events
    drawn = enumerate(zip(users.tolist(), items.tolist(), seconds.tolist(), strict=True))
    rows = (
        {"user_id": f"u{user}", "item_id": f"item-{item}", "timestamp": second, "event_id": f"e{number}"}
        for number, (user, item, second) in drawn
    )
    return [json.dumps(one).encode() for one in rows]


def load(producer: Producer, topic: str, lines: list[bytes]) -> None:
    """Write lines to the partitions of a topic in turn."""
    for number, line in enumerate(lines):
        if number % QUEUED == 0:
            producer.flush(300)
        producer.produce(topic, line, partition=number % PARTITIONS)
    assert producer.flush(300) == 0  # noqa: S101 - or nothing is measured


def consume(config: PipelineConfig, events: int, *, validate: bool) -> None:
    """Read the whole topic."""
    found = TopicClient(Topic.parse(config.log), config.kafka).partitions()
    rows, validator = 0, Validator(config)
    starts = {one.key: SourceSpan(start=0, stop=0, resume=0, size=0) for one in found}
    for wanted in plan_ranges(found, Seen(starts), 1 << 60):
        for block in RangeReader(wanted, config).blocks():
            if validate:
                rows += len(validator.validate(block)[0].rows)
            elif block.content:
                rows += len(block.content.positions)
    assert rows == events, f"{rows} of {events} rows"  # noqa: S101 - or something else was measured


if __name__ == "__main__":
    app()
