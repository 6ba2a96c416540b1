"""Flink: Beam's options for running on Flink, and a client of Flink's REST API (1.17 and later)."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import xxhash
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from weir.contracts import Store, UserError
from weir.pipelines.stream.config import StreamConfig

__all__ = [
    "REST",
    "Checkpoints",
    "FlinkAwayError",
    "FlinkClient",
    "Job",
    "JobFailure",
    "JobMissingError",
    "cause",
    "job_name",
    "pipeline_options",
]

REST: Final = "http://127.0.0.1:8081"
_NO_WATERMARK: Final = -(2**63)
_LAST_WATERMARK: Final = 2**63 - 1
_LENGTH: Final = 40
"""Longest readable part of a job name, characters."""


def job_name(store: Store) -> str:
    """Return the job name of a store's stream, unique by the store's URL."""
    readable = "".join(
        sign if sign.isascii() and sign.isalnum() else "-" for sign in urlsplit(store.url).path.strip("/").lower()
    )
    return f"weir-{readable[-_LENGTH:].strip('-')}-{xxhash.xxh3_64_hexdigest(store.url.encode())[:8]}"


def pipeline_options(config: StreamConfig, name: str) -> list[str]:
    """Return the Beam options of a streaming pipeline; `config.options` come last and take precedence."""
    # --shutdown_sources_after_idle_ms stays unset: 0 would stop all checkpoints.
    return [
        "--runner=PortableRunner",
        f"--job_endpoint={config.job_endpoint}",
        f"--artifact_endpoint={config.artifact_endpoint}",
        "--environment_type=EXTERNAL",
        f"--environment_config={config.worker_pool}",
        f"--parallelism={config.parallelism}",
        f"--sdk_worker_parallelism={config.parallelism}",
        f"--checkpointing_interval={round(1000 * config.checkpoint_seconds)}",
        f"--max_bundle_size={config.bundle_batches}",
        f"--max_bundle_time_mills={round(1000 * config.bundle_seconds)}",
        # Otherwise a checkpoint holds back the output of a bundle, but not the watermark.
        "--finish_bundle_before_checkpointing",
        # Otherwise Beam runs pip, which images lack, to submit an unused list of packages.
        "--experiments=disable_logging_submission_environment",
        "--streaming",
        f"--job_name={name}",
        *config.options,
    ]


class FlinkAwayError(UserError):
    """Flink does not answer, or gives an unexpected answer."""


class JobMissingError(UserError):
    """The JobManager does not know the job."""


@dataclass(frozen=True)
class Job:
    """A Flink job: its state, such as ``RUNNING`` or ``RESTARTING``, and its start (Unix time, ms)."""

    id: str
    name: str
    state: str
    start_ms: int


@dataclass(frozen=True)
class JobFailure:
    """A failure that stopped the tasks of a job: the failed task ("" if there is none) and the root cause."""

    at_ms: int
    task: str
    cause: str


@dataclass(frozen=True)
class Checkpoints:
    """The number of failed checkpoints of a job, and time, size and duration of the newest completed checkpoint.

    `at_ms`, `bytes` and `milliseconds` are None before the first completed checkpoint.
    """

    failed: int
    at_ms: int | None
    bytes: int | None
    milliseconds: int | None


class FlinkClient:
    """A client of one JobManager; calls raise `FlinkAwayError`, calls about a job also `JobMissingError`."""

    def __init__(self, url: str = REST, timeout: float = 5.0) -> None:
        self.url, self._timeout = url.rstrip("/"), timeout

    def jobs(self) -> list[Job]:
        """Return all jobs that Flink remembers, newest first."""
        found = self._get("/jobs/overview")["jobs"]
        return sorted(map(_job, found), key=lambda job: job.start_ms, reverse=True)

    def job(self, job: str) -> Job:
        """Return a job by its id."""
        return _job(self._get(f"/jobs/{job}"))

    def failures(self, job: str) -> list[JobFailure]:
        """Return the newest failures of a job (Flink keeps 16 by default), newest first."""
        found = self._get(f"/jobs/{job}/exceptions")["exceptionHistory"]["entries"]
        return [JobFailure(one["timestamp"], one.get("taskName") or "", cause(one["stacktrace"])) for one in found]

    def restarts(self, job: str) -> int:
        """Return the number of restarts of a job; 0 until Flink has collected the metric."""
        found = self._get(f"/jobs/{job}/metrics", get="numRestarts")
        return int(found[0]["value"]) if found else 0

    def checkpoints(self, job: str) -> Checkpoints:
        """Return the state of a job's checkpoints."""
        found = self._get(f"/jobs/{job}/checkpoints")
        newest = found["latest"]["completed"] or {}
        return Checkpoints(
            found["counts"]["failed"],
            newest.get("latest_ack_timestamp"),
            newest.get("state_size"),
            newest.get("end_to_end_duration"),
        )

    def watermarks(self, job: str) -> dict[str, int | None]:
        """Return task id -> input watermark (event time, ms), None before the first watermark.

        Tasks without input, or whose input has ended, are left out.
        """
        lowest: dict[str, int | None] = {}
        for task in self._tasks(job):
            values = [int(one["value"]) for one in self._get(f"/jobs/{job}/vertices/{task}/watermarks")]
            if values and min(values) < _LAST_WATERMARK:
                lowest[task] = None if min(values) == _NO_WATERMARK else min(values)
        return lowest

    def counters(self, job: str, name: str) -> dict[str, float]:
        """Return task id -> the Beam counter `name`, summed over the subtasks since their last start."""
        sums: dict[str, float] = {}
        for task in self._tasks(job):
            path = f"/jobs/{job}/vertices/{task}/subtasks/metrics"
            ids = [metric["id"] for metric in self._get(path) if metric["id"].endswith(f"_{name}")]
            if ids:
                sums[task] = sum(metric["sum"] for metric in self._get(path, get=",".join(ids), agg="sum"))
        return sums

    def gauges(self, job: str, prefix: str) -> dict[str, float]:
        """Return name without `prefix` -> highest value over all subtasks, for Beam gauges with this prefix."""
        highest: dict[str, float] = {}
        for task in self._tasks(job):
            path = f"/jobs/{job}/vertices/{task}/subtasks/metrics"
            ids = [metric["id"] for metric in self._get(path) if prefix in metric["id"]]
            if ids:
                values = self._get(path, get=",".join(ids), agg="max")
                highest |= {metric["id"].rpartition(prefix)[2]: metric["max"] for metric in values}
        return highest

    def cancel(self, job: str) -> None:
        """Cancel a job; its tasks end soon after."""
        self._call("PATCH", f"/jobs/{job}")

    def _tasks(self, job: str) -> Iterator[str]:
        """Yield the task ids of a job."""
        return (task["id"] for task in self._get(f"/jobs/{job}")["vertices"])

    def _get(self, path: str, **parameters: str) -> Any:
        return self._call("GET", f"{path}?{urlencode(parameters)}" if parameters else path)

    @retry(
        retry=retry_if_exception_type(FlinkAwayError),
        stop=stop_after_attempt(3),
        wait=wait_random_exponential(0.1, 1),
        reraise=True,
    )
    def _call(self, method: str, path: str) -> Any:
        request = urllib.request.Request(self.url + path, method=method)  # noqa: S310 - the address in the settings
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:  # noqa: S310 - the same
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise JobMissingError(f"Flink at {self.url} knows no {path}") from None
            raise FlinkAwayError(f"Flink at {self.url} answers {error.code} to {path}") from None
        except (OSError, ValueError) as error:
            raise FlinkAwayError(f"Flink at {self.url} does not answer: {error}") from error


def cause(trace: str) -> str:
    """Return the root-cause line of a Java stack trace, or of the Python traceback in it."""
    _, is_python, raised = trace.rpartition("Traceback (most recent call last):\n")
    if is_python:
        lines = [line for line in raised.partition("\n\tat ")[0].splitlines() if line and not line[0].isspace()]
        if lines:
            return lines[-1]
    lines = [line for line in trace.splitlines() if line and not line[0].isspace()]
    return lines[-1].removeprefix("Caused by: ") if lines else ""


def _job(found: dict[str, Any]) -> Job:
    return Job(found["jid"], found["name"], found["state"], found["start-time"])
