"""Flink and the other engines as real processes, started by `python -m deploy.engines`."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry

from deploy.engines.__main__ import services
from deploy.engines.settings import HOST, ROOT, EngineSettings
from tests.integration import flink_jobs
from tests.integration.flink_cluster import Cluster, moved
from weir.pipelines.stream.flink_client import FlinkAwayError, FlinkClient, Job, JobMissingError
from weir.pipelines.stream.flink_metrics import FlinkMetrics
from weir.runtime.listening import is_held


def engines(settings: EngineSettings, command: str) -> "subprocess.CompletedProcess[str]":
    given = {f"ENGINES_{name.upper()}": str(value) for name, value in settings.model_dump().items()}
    words = [sys.executable, "-m", "deploy.engines", command]
    return subprocess.run(words, cwd=ROOT, env=os.environ | given, capture_output=True, text=True, check=False)


def test_all_start_answer_heal_and_stop_with_nothing_left(tmp_path: Path) -> None:
    settings = moved(tmp_path / "engines")
    wanted = services(settings)
    try:
        done = engines(settings, "start")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(" started\n") == len(wanted)
        assert engines(settings, "status").returncode == 0
        pids = {one.name: one.processes()[0] for one in wanted}
        os.kill(pids["taskmanager"], signal.SIGKILL)
        assert engines(settings, "status").returncode == 1
        healed = engines(settings, "start")
        assert (healed.stdout.count(" was running\n"), healed.stdout.count(" started\n")) == (len(wanted) - 1, 1)
        assert {one.name for one in wanted if one.processes()[0] != pids[one.name]} == {"taskmanager"}
    finally:
        stopped = engines(settings, "stop")
    assert stopped.stdout.count(" stopped\n") == len(wanted), stopped.stderr
    assert [one.processes() for one in wanted] == [[]] * len(wanted)
    assert not any(is_held("an engine", HOST, port) for one in wanted for port in one.ports)
    assert engines(settings, "stop").stdout == "nothing was running\n"
    status = engines(settings, "status")
    assert (status.returncode, status.stdout.count("does not run")) == (1, len(wanted))


def test_a_taken_port_is_named_and_what_was_started_is_stopped(tmp_path: Path) -> None:
    settings = moved(tmp_path / "engines")
    with socket.create_server(("127.0.0.1", settings.pool_port)):
        done = engines(settings, "start")
    assert done.returncode == 1
    assert f"port {settings.pool_port} is in use by another program" in done.stderr
    assert "ENGINES_POOL_PORT" in done.stderr
    assert [one.processes() for one in services(settings)] == [[]] * 5


PATIENCE_SECONDS = 150


class Watch:
    """Looks at a job, again and again."""

    def __init__(self, client: FlinkClient, job: str) -> None:
        self.client, self.job, self.registry = client, job, CollectorRegistry()
        self.metrics = FlinkMetrics(self.registry)

    def value(self, name: str, **labels: str) -> float:
        found = self.registry.get_sample_value(f"weir_pipeline_{name}", labels)
        assert found is not None, name
        return found

    def until(self, is_true: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while self.metrics.look(self.client, self.job) is None or not is_true():
            assert time.monotonic() < end, self.client.failures(self.job)
            time.sleep(0.3)

    def until_state(self, state: str) -> None:
        self.until(lambda: self.value("job_state", state=state) == 1)


@contextmanager
def job(cluster: Cluster, folder: Path) -> Iterator[Job]:
    """Run the endless job; it is cancelled at the end."""
    name, client = f"test-{uuid4().hex}", cluster.client()
    flink_jobs.start(folder, flink_jobs.options(cluster.settings, f"--job_name={name}"))
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := [one for one in client.jobs() if one.name == name]):
        assert time.monotonic() < end
        time.sleep(0.1)
    try:
        yield found[0]
    finally:
        client.cancel(found[0].id)


def windows(folder: Path) -> list[list[str]]:
    file = folder / "windows.txt"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def test_metrics_follow_a_job_through_failures_late_rows_and_its_end(
    flink: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with job(flink, tmp_path) as running:
        watch = Watch(flink.client(), running.id)
        watch.until(lambda: len(windows(tmp_path)) > 2 and watch.value("checkpoint_bytes") > 0)
        assert watch.value("job_state", state="running") == 1
        assert watch.value("engine_away") == 0
        assert watch.value("job_failures_total") == watch.value("dropped_late_rows_total") == 0
        assert abs(watch.value("checkpoint_timestamp_seconds") - time.time()) < 60
        watch.until(lambda: abs(watch.value("job_watermark_timestamp_seconds") - time.time()) < 60)
        late(watch, tmp_path)
        fails_and_recovers(watch, tmp_path, caplog)
    watch.until_state("canceled")


def late(watch: Watch, folder: Path) -> None:
    (folder / "late").touch()
    watch.until(lambda: watch.value("dropped_late_rows_total") > 0)
    (folder / "late").unlink()


def fails_and_recovers(watch: Watch, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "poison").touch()
    with caplog.at_level(logging.ERROR):
        watch.until(lambda: watch.value("job_failures_total") > 1 and watch.value("job_restarts_total") > 0)
    assert any("ValueError: the file poison is there" in one.message for one in caplog.records)
    assert "ParDo(FailWhile)" in watch.client.failures(watch.job)[0].task
    (folder / "poison").unlink()
    seen = len(windows(folder))
    watch.until(lambda: len(windows(folder)) > seen + 1)
    watch.until_state("running")


def test_a_killed_worker_and_a_killed_task_manager_lose_no_window(flink: Cluster, tmp_path: Path) -> None:
    with job(flink, tmp_path) as running:
        watch = Watch(flink.client(), running.id)
        watch.until(lambda: len(windows(tmp_path)) > 2 and watch.value("checkpoint_bytes") > 0)
        worker = windows(tmp_path)[-1][1]
        os.kill(int(worker), signal.SIGKILL)
        watch.until(lambda: windows(tmp_path)[-1][1] != worker)
        worker = windows(tmp_path)[-1][1]
        os.kill(flink.services["taskmanager"].processes()[0], signal.SIGKILL)
        flink.heal()
        watch.until(lambda: windows(tmp_path)[-1][1] != worker)
        watch.until(lambda: watch.value("job_restarts_total") >= 2)
        ends = {int(line[2]) for line in windows(tmp_path)}
    assert ends == set(range(min(ends), max(ends) + 1)), "windows may be there twice, but all are there"


def test_a_job_that_flink_does_not_know_is_missing(flink: Cluster) -> None:
    watch = Watch(flink.client(), "0" * 32)
    with pytest.raises(JobMissingError):
        watch.client.job(watch.job)
    assert watch.metrics.look(watch.client, watch.job) == "missing"
    assert watch.value("job_state", state="missing") == 1


def test_a_flink_that_hangs_is_away_and_nothing_is_said_of_its_job(
    flink: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch(FlinkClient(flink.rest, timeout=0.2), "0" * 32)
    assert watch.metrics.look(watch.client, watch.job) == "missing"
    manager = flink.services["jobmanager"]
    manager.signal(signal.SIGSTOP)
    try:
        with pytest.raises(FlinkAwayError, match="does not answer"):
            watch.client.jobs()
        with caplog.at_level(logging.WARNING):
            assert [watch.metrics.look(watch.client, watch.job) for _ in range(2)] == [None, None]
    finally:
        manager.signal(signal.SIGCONT)
    assert watch.value("engine_away") == 1
    assert watch.value("job_state", state="missing") == 0
    assert len([one for one in caplog.records if "does not answer" in one.message]) == 1
    watch.until(lambda: watch.value("engine_away") == 0)
