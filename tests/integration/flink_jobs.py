"""Small jobs for a real Flink: workers import them, so they are in no test module."""

import os
import time
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from deploy.engines.settings import HOST, EngineSettings


class Record(beam.DoFn):  # type: ignore[misc]
    """Writes a line for each window: the wall clock, the process, the window's end and its number of elements."""

    def __init__(self, file: str) -> None:
        self.file = file

    def process(self, row: tuple[int, Any], window: Any = beam.DoFn.WindowParam) -> None:
        with Path(self.file).open("a") as lines:
            lines.write(f"{time.time():.3f} {os.getpid()} {float(window.end):.0f} {len(list(row[1]))}\n")


class FailWhile(beam.DoFn):  # type: ignore[misc]
    """Fails as long as a file exists."""

    def __init__(self, file: str) -> None:
        self.file = file

    def process(self, element: Any) -> Any:
        if Path(self.file).exists():
            raise ValueError(f"the file {Path(self.file).name} is there")
        yield element


class Delay(beam.DoFn):  # type: ignore[misc]
    """Makes every tenth element an hour late, as long as a file exists."""

    def __init__(self, file: str) -> None:
        self.file, self.seen = file, 0

    def process(self, element: Any, at: Any = beam.DoFn.TimestampParam) -> Any:
        self.seen += 1
        is_late = self.seen % 10 == 0 and Path(self.file).exists()
        yield TimestampedValue(element, at - 3600 if is_late else at)


def options(settings: EngineSettings, *more: str) -> PipelineOptions:
    return PipelineOptions(
        [
            "--runner=PortableRunner",
            f"--job_endpoint={HOST}:{settings.job_port}",
            f"--artifact_endpoint={HOST}:{settings.artifact_port}",
            "--environment_type=EXTERNAL",
            f"--environment_config={HOST}:{settings.pool_port}",
            "--streaming",
            "--parallelism=1",
            "--checkpointing_interval=1000",
            "--max_bundle_time_mills=100",
            *more,
        ]
    )


def start(folder: Path, given: PipelineOptions, window_seconds: float = 1) -> Any:
    """Start an endless job; returns its result at once.

    It fails while ``folder/poison`` exists, delays rows while ``folder/late`` does, and writes ``folder/windows.txt``.
    """
    pipeline = beam.Pipeline(options=given)
    (
        pipeline
        | PeriodicImpulse(fire_interval=0.1)
        | beam.ParDo(FailWhile(str(folder / "poison")))
        | beam.ParDo(Delay(str(folder / "late")))
        | beam.Map(lambda at: (0, at))
        | beam.WindowInto(FixedWindows(window_seconds))
        | beam.GroupByKey()
        | beam.ParDo(Record(str(folder / "windows.txt")))
    )
    return pipeline.run()
