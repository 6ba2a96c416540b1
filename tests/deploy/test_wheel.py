"""The wheel: what is in it, and the demo from it, in a folder that has packages of the same names.

What weir depends on comes from the environment of the tests, weir itself from the wheel only.
"""

import json
import os
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import PathDistribution, distribution
from importlib.metadata import version as version_of
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.deploy.blocked import OURS
from tests.deploy.support import ROOT, tool
from tests.ports import free_port
from weir.demo.generator import GeneratorConfig, generate
from weir.up.ports import PORTS

SETTINGS = (
    "trainer.batch_size=32",
    "trainer.tower.kind=mean_pooling",
    "trainer.tower.dimension=8",
    "trainer.negatives.uniform=8",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that a release builds: from the source distribution, which is built from what git has."""
    folder = tmp_path_factory.mktemp("wheel")
    # A copy: setuptools writes metadata beside the sources.
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (ROOT / name).is_file():
            copy = folder / "weir" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / name).read_bytes())
    build = [tool("uv"), "build", "--quiet", "--offline", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*build, "--out-dir", str(folder), str(folder / "weir")], check=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the commands of an environment that holds the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", str(wheel)], check=True, timeout=120)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A path alone: .pth files there, such as that of an editable weir, are not read.
    (packages / "dependencies.pth").write_text(str(Path(str(distribution("numpy").locate_file("")))) + "\n")
    return folder / "bin"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a folder that has a package of each name that weir has, none of which can be imported."""
    for name in OURS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('this is not of the wheel')\n")
    return tmp_path


def environment() -> dict[str, str]:
    dropped = ("PYTHON", "WEIR_", "VIRTUAL_ENV", "COVERAGE")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def test_the_wheel_holds_our_packages_with_every_file_and_nothing_else(wheel: Path) -> None:
    listed = subprocess.run(["git", "ls-files", *sorted(OURS)], cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {name for name in listed.stdout.split() if (ROOT / name).is_file()}


def test_all_is_every_stage_without_a_gpu_and_resolves_to_what_is_tested_here(installed: Path) -> None:
    (metadata,) = installed.parent.glob("lib/python*/site-packages/weir-*.dist-info")
    found = PathDistribution(metadata)
    wanted = [Requirement(line) for line in found.requires or []]
    (extras,) = [each.extras for each in wanted if each.marker and each.marker.evaluate({"extra": "all"})]
    assert extras == {"pipeline", "trainer", "serving", "cpu"}
    extras |= {inner for each in wanted if each.name == "weir" and applies(each, "serving") for inner in each.extras}
    needed = [each for each in wanted for extra in ("", *extras) if applies(each, extra)]
    assert {"torch", "apache-beam", "grpcio", "faiss-cpu", "numpy"} <= {each.name for each in needed}
    assert [str(each) for each in needed if version_of(each.name) not in each.specifier] == []


def applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def test_the_commands_are_of_the_wheel_wherever_they_run(installed: Path, hostile: Path) -> None:
    for arguments in (["--version"], ["--help"], ["up", "--help"], ["config", "schema"]):
        command = [str(installed / "weir"), *arguments]
        done = subprocess.run(command, cwd=hostile, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    code = "import weir, trainer; print(weir.__file__, trainer.__file__)"
    python = [str(installed / "python"), "-P", "-c", code]
    where = subprocess.run(python, cwd=hostile, env=environment(), capture_output=True, text=True, check=True).stdout
    assert all(Path(each).is_relative_to(installed.parent) for each in where.split())


def test_the_shell_completes_commands(installed: Path) -> None:
    asked = {"_WEIR_COMPLETE": "complete_bash", "COMP_WORDS": "weir in", "COMP_CWORD": "1"}
    command = [str(installed / "weir")]
    done = subprocess.run(command, env=environment() | asked, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"ingest", "init", "inspect"}


def test_workers_that_beam_starts_are_of_the_wheel(installed: Path, hostile: Path) -> None:
    """Beam starts them with ``python -m``, which looks into the folder first."""
    (hostile / "log.jsonl").write_bytes(generate(GeneratorConfig(users=30, items=40, events=300, days=1)).lines)
    workers = 'pipeline.runner_options=["--direct_running_mode=multi_processing", "--direct_num_workers=1"]'
    command = [str(installed / "weir"), "ingest", "--log", "log.jsonl", "--store", "store"]
    settings = ["--set", workers, "--set", "pipeline.metrics_port=0"]
    done = subprocess.run(
        [*command, *settings, "--json"],
        cwd=hostile,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["windows"] > 0


def test_the_demo_runs_from_the_wheel(installed: Path, hostile: Path) -> None:
    """Every stage, two ranks, the tracing of the tower and a reader of the bundles: each is a process of its own."""
    made = generate(GeneratorConfig(users=30, items=40, events=300, days=1))
    (hostile / "log.jsonl").write_bytes(made.lines)
    ports = [f"{key}={free_port()}" for key in PORTS]
    settings = [part for pair in (*SETTINGS, *ports) for part in ("--set", pair)]
    command = [str(installed / "weir"), "up", "--demo", "--once", "--log", "log.jsonl", "--seconds", "2", *settings]
    done = subprocess.run(
        command, cwd=hostile, env=environment(), capture_output=True, text=True, timeout=280, check=False
    )
    logs = "".join(path.read_text() for path in (hostile / "weir-data" / "logs").glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert "this is not of the wheel" not in done.stdout + done.stderr + logs
    assert "was not traced" not in logs
    assert "requests" in done.stderr + done.stdout
