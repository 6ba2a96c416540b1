"""Weir's Kafka source on Flink beside Beam's own in Java, `ReadFromKafka`: events per CPU-second, nothing after it.

``python -m benchmarks.read_from_kafka`` runs a Kafka and a Flink of its own (`make tools` fetches them), and fetches
Beam's connector with Maven. Both read the same topic and count its events in Python. CPU time is that of Python's
workers, and of Flink's TaskManager, in which the Java part of `ReadFromKafka` runs. Neither counts before a quarter of
the events is read: so the start of jobs and workers is left out.
"""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import apache_beam as beam
import typer
from apache_beam.io.kafka import ReadFromKafka
from apache_beam.options.pipeline_options import PipelineOptions
from confluent_kafka import Producer
from prometheus_client import CollectorRegistry

from benchmarks.harness import head, row
from benchmarks.kafka import FAST, event_lines, load
from benchmarks.stream import CHANGES, Run
from deploy.engines.fetch import maven
from deploy.engines.processes import Service, is_listening, start, stop
from deploy.engines.settings import HOST
from tests.campaigns.stream_faults import Stream, streaming
from tests.ports import free_port
from weir.pipelines.stream.engine import job_name, pipeline_options
from weir.pipelines.stream.flink import FlinkClient
from weir.pipelines.stream.flink_metrics import FlinkMetrics
from weir.pipelines.stream.job import FlinkJob

_TOPIC: Final = "events"


class CountMessages(beam.DoFn):
    """Appends the number of messages of each bundle to a file."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._found = 0

    def process(self, _element: object) -> None:
        """Count one message."""
        self._found += 1

    def finish_bundle(self) -> None:
        """Write the number down."""
        with Path(self._file).open("a") as file:
            file.write(f"{self._found}\n")
        self._found = 0


def main(
    events: Annotated[int, typer.Option(min=1000, help="number of events")] = 1_000_000,
    experiment: Annotated[
        list[str] | None, typer.Option(help="Beam experiments of ReadFromKafka: use_deprecated_read")
    ] = None,
) -> None:
    """Measure both, and print a table."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name, streaming(Path(name), _TOPIC, **CHANGES) as stream:
        load(Producer(FAST | {"bootstrap.servers": stream.servers}), _TOPIC, event_lines(events))
        head("source", "events", "Python CPU s", "JVM CPU s", "events per CPU-second")
        ours = _measure("weir", Run(stream, events, stream.settings, "nothing"))
        with _expansion(stream) as address:
            peer = Peer(stream, events, stream.settings, "nothing", address, experiment or [])
            theirs = _measure("ReadFromKafka", peer)
        print(f"\nweir / ReadFromKafka: {ours / theirs:.2f}")


def _measure(source: str, run: Run) -> float:
    """Print a row; return events per CPU-second of Python and Java together."""
    events, python, jvm = run.steady()
    row(source, f"{events:,}", f"{python:.1f}", f"{jvm:.1f}", f"{events / (python + jvm):,.0f}")
    return events / (python + jvm)


@dataclass
class Peer(Run):
    """A job that reads with `ReadFromKafka`."""

    expansion: str
    experiments: Sequence[str]

    def submit(self) -> FlinkJob:
        """Start the job, and wait until Flink has it."""
        name = job_name(self.store)
        options = [*pipeline_options(self.settings, name), *(f"--experiments={one}" for one in self.experiments)]
        pipeline = beam.Pipeline(options=PipelineOptions(options))
        consumer = {"bootstrap.servers": self.stream.servers, "auto.offset.reset": "earliest", "group.id": name}
        messages = pipeline | ReadFromKafka(consumer, [_TOPIC], expansion_service=self.expansion)
        _ = messages | beam.ParDo(CountMessages(str(self.counted)))
        pipeline.run()
        job = FlinkJob(FlinkClient(self.settings.flink_rest), name, FlinkMetrics(CollectorRegistry()))
        job.appear()
        return job


@contextmanager
def _expansion(stream: Stream) -> Iterator[str]:
    """Run the service that expands Java transforms, and a job server that takes their jars along."""
    engines, port = stream.engines, free_port()
    jars = stream.folder / "jars"
    versions = {
        "beam.version": engines.beam_version,
        "job.service.version": engines.job_service_version,
        "flink.line": engines.flink_line,
        "kafka.version": engines.kafka_version,
    }
    project = Path(__file__).with_name("read_from_kafka.xml")
    maven(project, "dependency:copy-dependencies", outputDirectory=jars, **versions)
    main = "org.apache.beam.sdk.expansion.service.ExpansionService"
    # In the TaskManager: no container, no third process.
    where = ["--defaultEnvironmentType=EMBEDDED", "--javaClassLookupAllowlistFile=*"]
    server = stream.services["job-server"]
    alone = f"{engines.job_server_jars}/job-server.jar"
    command = [f"{jars}/*" if part == alone else part for part in server.command]
    service = Service(
        name="expansion",
        folder=engines.folder,
        command=["java", "-Xmx512m", "-cp", f"{jars}/*", main, str(port), *where],
        ports={port: "a free port"},
        answers=lambda: is_listening(port),
    )
    stop([server])
    stream.services["job-server"] = replace(server, command=command)
    start([service, stream.services["job-server"]], engines.start_seconds)
    try:
        yield f"{HOST}:{port}"
    finally:
        stop([service])


if __name__ == "__main__":
    typer.run(main)
