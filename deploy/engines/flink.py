"""Flink as a session cluster (JobManager and one TaskManager), and Beam's job server in front of it."""

import json
import shutil
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from deploy.engines.processes import Service, is_listening
from deploy.engines.settings import HOST, EngineSettings

__all__ = ["job_manager", "job_server", "task_manager"]

_LOGGING = """\
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = OUT
appender.out.name = OUT
appender.out.type = CONSOLE
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %-5p %c{1} %m%n
"""
_OPENED = (
    *(f"java.base/java.{name}" for name in ("io", "lang", "lang.reflect", "net", "nio", "text", "time", "util")),
    *(f"java.base/java.util.concurrent{name}" for name in ("", ".atomic", ".locks")),
    "java.base/sun.nio.ch",
)
"""Packages of Java 17 that Flink reaches into, as its own start scripts allow it."""
_NAME = "taskmanager.resource-id"


def job_manager(settings: EngineSettings) -> Service:
    """Return the JobManager. It forgets its jobs when it ends; theirs is what they have committed."""
    main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"

    def prepare() -> None:
        for name in ("checkpoints", "temporary"):
            shutil.rmtree(_folder(settings) / name, ignore_errors=True)
        _write_configuration(settings)

    return Service(
        name="jobmanager",
        folder=settings.folder,
        command=[*_java(settings, "-Xmx768m"), main, "--configDir", str(_folder(settings))],
        ports={settings.flink_port: "ENGINES_FLINK_PORT", settings.flink_rpc_port: "ENGINES_FLINK_RPC_PORT"},
        answers=lambda: _asked(settings, "overview") is not None,
        prepare=prepare,
    )


def task_manager(settings: EngineSettings) -> Service:
    """Return the TaskManager with all slots."""
    memory = ("-Xmx1024m", "-XX:MaxDirectMemorySize=512m", "-XX:MaxMetaspaceSize=512m")
    main = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"

    def prepare() -> None:
        # A name for each start: for a while the JobManager counts the slots of one that was killed.
        _write_configuration(settings, {_NAME: f"taskmanager-{time.time_ns()}"})

    return Service(
        name="taskmanager",
        folder=settings.folder,
        command=[*_java(settings, *memory), main, "--configDir", str(_folder(settings))],
        ports={},
        answers=lambda: _is_registered(settings),
        prepare=prepare,
    )


def job_server(settings: EngineSettings) -> Service:
    """Return Beam's job server, which takes pipelines and gives them to Flink."""
    artifacts = settings.folder / "artifacts"
    main = "org.apache.beam.runners.flink.FlinkJobServerDriver"
    options = {
        "flink-master": f"{HOST}:{settings.flink_port}",
        "job-host": HOST,
        "job-port": settings.job_port,
        "artifact-port": settings.artifact_port,
        # Nothing here expands Java transforms: any free port.
        "expansion-port": 0,
        "artifacts-dir": artifacts,
    }
    java = ["java", "-Xmx768m", *_opens(), "-cp", f"{settings.job_server_jars}/job-server.jar", main]
    return Service(
        name="job-server",
        folder=settings.folder,
        command=[*java, *(f"--{name}={value}" for name, value in options.items())],
        ports={settings.job_port: "ENGINES_JOB_PORT", settings.artifact_port: "ENGINES_ARTIFACT_PORT"},
        answers=lambda: is_listening(settings.job_port) and is_listening(settings.artifact_port),
        # What jobs were submitted with: nothing reads it again.
        prepare=lambda: shutil.rmtree(artifacts, ignore_errors=True),
    )


def _java(settings: EngineSettings, *memory: str) -> list[str]:
    folder = _folder(settings)
    logging = f"-Dlog4j.configurationFile=file:{folder}/log4j.properties"
    return ["java", *memory, *_opens(), logging, "-cp", f"{settings.flink_jars}/*"]


def _opens() -> list[str]:
    return [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]


def _folder(settings: EngineSettings) -> Path:
    return settings.folder / "flink"


def _is_registered(settings: EngineSettings) -> bool:
    """Ask the JobManager whether it has the slots of this TaskManager."""
    name = yaml.safe_load((_folder(settings) / "config.yaml").read_text()).get(_NAME)
    found = (_asked(settings, "taskmanagers") or {}).get("taskmanagers", [])
    return any(one["id"] == name and one["slotsNumber"] >= settings.task_slots for one in found)


def _asked(settings: EngineSettings, path: str) -> dict[str, Any] | None:
    """Return the answer of Flink's REST API, None if there is none."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{settings.flink_port}/{path}", timeout=5) as answer:
            return dict(json.load(answer))
    except (OSError, ValueError):
        return None


def _write_configuration(settings: EngineSettings, more: dict[str, str] | None = None) -> None:
    folder = _folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log4j.properties").write_text(_LOGGING)
    (folder / "config.yaml").write_text(yaml.safe_dump(_options(settings) | (more or {})))


def _options(settings: EngineSettings) -> dict[str, Any]:
    folder = _folder(settings)
    return (
        _addresses(settings)
        | _memory(settings)
        | {
            "io.tmp.dirs": f"{folder}/temporary",
            # The job server uploads its jar, 160 MB, with each job.
            "blob.service.cleanup.interval": 60,
            "state.backend.type": "hashmap",
            "state.checkpoints.dir": f"file://{folder}/checkpoints",
            # A job that fails is tried again every second, for ever: waits that grow would delay it once it can run.
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 2**31 - 1,
            "restart-strategy.fixed-delay.delay": "1 s",
            # A killed TaskManager refuses two heartbeats; one that hangs has ten seconds.
            "heartbeat.interval": 1000,
            "heartbeat.rpc-failure-threshold": 2,
            "heartbeat.timeout": 10000,
            # On a busy machine ten seconds, the default, are not enough to start.
            "pekko.startup-timeout": "120 s",
        }
    )


def _addresses(settings: EngineSettings) -> dict[str, Any]:
    return {
        "jobmanager.rpc.address": HOST,
        "jobmanager.rpc.port": settings.flink_rpc_port,
        "jobmanager.bind-host": HOST,
        "rest.address": HOST,
        "rest.bind-address": HOST,
        "rest.port": settings.flink_port,
        "taskmanager.host": HOST,
        "taskmanager.bind-host": HOST,
    }


def _memory(settings: EngineSettings) -> dict[str, Any]:
    """Return what Flink's start scripts would work out; it must fit the options of the Java machines."""
    sizes = {
        "framework.heap.size": 128,
        "task.heap.size": 896,
        "framework.off-heap.size": 128,
        "task.off-heap.size": 256,
        "network.min": 128,
        "network.max": 128,
        "managed.size": 256,
        "jvm-metaspace.size": 512,
        "jvm-overhead.min": 128,
        "jvm-overhead.max": 128,
    }
    return {f"taskmanager.memory.{name}": f"{size} mb" for name, size in sizes.items()} | {
        "jobmanager.memory.process.size": "1536 mb",
        "taskmanager.numberOfTaskSlots": settings.task_slots,
        "taskmanager.cpu.cores": float(settings.task_slots),
    }
