"""Fetch the engines' jars with pip and Maven: once, into one folder for each version."""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from deploy.engines.settings import HERE, EngineSettings
from weir.contracts import UserError

__all__ = ["FetchError", "fetch", "is_fetched", "maven", "missing_tools"]

_FLINK = "apache-flink-libraries"


class FetchError(UserError):
    """Something could not be fetched; the message is that of the tool."""


def missing_tools() -> list[str]:
    """Return the programs that are needed and not installed."""
    return [name for name in ("java", "mvn") if shutil.which(name) is None]


def is_fetched(settings: EngineSettings) -> bool:
    """Return whether all jars are there."""
    return all(folder.is_dir() for folder in _parts(settings))


def fetch(settings: EngineSettings, say: Callable[[str], None]) -> None:
    """Fetch what is missing; raises `FetchError`. Two that fetch at once do not disturb each other."""
    wanted = {folder: bring for folder, bring in _parts(settings).items() if not folder.is_dir()}
    if wanted and (missing := missing_tools()):
        raise FetchError(f"the engines need Java 11 or 17 and Maven: there is no {' and no '.join(missing)}")
    for folder, bring in wanted.items():
        say(f"fetching {folder.name} ...")
        settings.tools.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=settings.tools, prefix=".") as part:
            made = bring(settings, Path(part))
            if not folder.is_dir():
                made.rename(folder)


def _parts(settings: EngineSettings) -> dict[Path, Callable[[EngineSettings, Path], Path]]:
    return {settings.kafka_jars: _kafka, settings.flink_jars: _flink, settings.job_server_jars: _job_server}


def _kafka(settings: EngineSettings, part: Path) -> Path:
    jars = part / "jars"
    maven(
        HERE / "kafka.xml",
        "dependency:copy-dependencies",
        outputDirectory=jars,
        **{"kafka.version": settings.kafka_version},
    )
    return jars


def _flink(settings: EngineSettings, part: Path) -> Path:
    # Its source package holds the jars; nothing is built or installed of it.
    wanted = ["--no-deps", "--no-binary", _FLINK, "--dest", str(part), f"{_FLINK}=={settings.flink_version}"]
    _run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *wanted])
    [archive] = part.glob("*.tar.gz")
    jars = part / "jars"
    jars.mkdir()
    with tarfile.open(archive) as packed:
        for member in packed:
            name = Path(member.name).name
            if "/deps/lib/" in member.name and name.startswith(("flink-dist-", "log4j-")):
                member.name = name
                packed.extract(member, jars, filter="data")
    return jars


def _job_server(settings: EngineSettings, part: Path) -> Path:
    versions = {
        "beam.version": settings.beam_version,
        "job.service.version": settings.job_service_version,
        "flink.line": settings.flink_line,
    }
    maven(HERE / "job-server.xml", "package", folder=part / "made", **versions)
    jars = part / "jars"
    jars.mkdir()
    (part / "made/job-server.jar").rename(jars / "job-server.jar")
    return jars


def maven(project: Path, goal: str, **properties: object) -> None:
    """Run a goal of a project file; raises `FetchError`."""
    given = [f"-D{name}={value}" for name, value in properties.items()]
    _run(["mvn", "--quiet", "--batch-mode", "--file", str(project), goal, *given])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise FetchError(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}")
