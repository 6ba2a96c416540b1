"""The wheel: what is in it, and the demo from it, in a folder that has packages of the same names.

What weir depends on comes from the environment of the tests, weir itself from the wheel only.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import PathDistribution, distribution
from importlib.metadata import version as version_of
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.deploy.support import ROOT, tool
from tests.ports import free_port
from weir.demo.generator import GeneratorConfig, generate
from weir.up.ports import PORTS

STAGES = ("pipelines", "serving", "sketches", "trainer")
"""Folders of the repository that are packages of weir."""

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
    for name in tracked():
        copy = folder / "weir" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy, follow_symlinks=False)
    build = [tool("uv"), "build", "--quiet", "--offline", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*build, "--out-dir", str(folder), str(folder / "weir")], check=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


def tracked(*folders: str) -> list[str]:
    """Return the files and links that git has and that are there."""
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and os.path.lexists(ROOT / name)]


def expected() -> set[str]:
    """Return every file of weir as it is installed: links in ``weir/`` lead to the folders of the stages."""
    links = {name: str((ROOT / name).readlink()) for name in tracked("weir") if (ROOT / name).is_symlink()}
    assert links == {f"weir/{folder}": f"../{folder}" for folder in STAGES}
    return set(tracked("weir")) - set(links) | {f"weir/{name}" for name in tracked(*STAGES)}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the commands of an environment that holds the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    install(folder, wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A path alone: .pth files there, such as that of an editable weir, are not read.
    (packages / "dependencies.pth").write_text(str(Path(str(distribution("numpy").locate_file("")))) + "\n")
    return folder / "bin"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a folder that has packages of names that weir has, none of which can be imported."""
    for name in ("weir", *STAGES):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('this is not of the wheel')\n")
    return tmp_path


def clean_environment() -> dict[str, str]:
    dropped = ("PYTHON", "WEIR_", "VIRTUAL_ENV", "COVERAGE")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def test_the_wheel_holds_one_package_with_every_file_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == expected()


def test_the_source_distribution_holds_one_package_with_every_file(wheel: Path) -> None:
    (source,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        members = {member.name.partition("/")[2]: member for member in archive.getmembers() if not member.isdir()}
    assert all(member.isreg() for member in members.values()), "real files: a link would lead out of the archive"
    assert {name for name in members if name.startswith("weir/")} == expected()
    packages = {name.partition("/")[0] for name in members if name.endswith("/__init__.py")}
    assert packages == {"weir"}


@pytest.mark.parametrize("order", ["before", "after"])
def test_packages_of_others_stay_as_they_are(wheel: Path, tmp_path: Path, order: str) -> None:
    """`trainer`, `pipelines`, `contracts` and others are names of other projects: installed beside weir, both work."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    names = ("trainer", "pipelines", "contracts", "logs", "serving", "sketches")
    others = [stand_in(tmp_path, name) for name in names]
    wheels = [*others, wheel] if order == "before" else [wheel, *others]
    for each in wheels:
        install(environment, each)
    (packages / "dependencies.pth").write_text(str(Path(str(distribution("numpy").locate_file("")))) + "\n")
    owners = ", ".join(f"{name}.OWNER" for name in names)
    code = f"import weir.trainer, weir.contracts, {', '.join(names)}; print({owners})"
    python = [str(environment / "bin" / "python"), "-P", "-c", code]
    done = subprocess.run(python, env=clean_environment(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == list(names)


def stand_in(folder: Path, name: str) -> Path:
    """Return a wheel of another project with a package `name`."""
    built = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(built, "w") as archive:
        archive.writestr(f"{name}/__init__.py", f"OWNER = {name!r}\n")
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return built


def install(environment: Path, wheel: Path) -> None:
    python = str(environment / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=120)


def test_all_is_every_stage_without_a_gpu_and_resolves_to_what_is_tested_here(installed: Path) -> None:
    (metadata,) = installed.parent.glob("lib/python*/site-packages/weir_retrieval-*.dist-info")
    found = PathDistribution(metadata)
    wanted = [Requirement(line) for line in found.requires or []]
    (extras,) = [each.extras for each in wanted if each.marker and each.marker.evaluate({"extra": "all"})]
    assert extras == {"pipeline", "trainer", "serving", "cpu"}
    extras |= {
        inner for each in wanted if each.name == "weir-retrieval" and applies(each, "serving") for inner in each.extras
    }
    needed = [each for each in wanted for extra in ("", *extras) if applies(each, extra)]
    assert {"torch", "apache-beam", "grpcio", "faiss-cpu", "numpy"} <= {each.name for each in needed}
    assert [str(each) for each in needed if version_of(each.name) not in each.specifier] == []


def applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def test_the_commands_are_of_the_wheel_wherever_they_run(installed: Path, hostile: Path) -> None:
    for arguments in (["--version"], ["--help"], ["up", "--help"], ["config", "schema"]):
        command = [str(installed / "weir"), *arguments]
        done = subprocess.run(
            command, cwd=hostile, env=clean_environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    code = "import weir.trainer; print(weir.__file__, weir.trainer.__file__)"
    python = [str(installed / "python"), "-P", "-c", code]
    where = subprocess.run(
        python, cwd=hostile, env=clean_environment(), capture_output=True, text=True, check=True
    ).stdout
    assert all(Path(each).is_relative_to(installed.parent) for each in where.split())


def test_the_shell_completes_commands(installed: Path) -> None:
    asked = {"_WEIR_COMPLETE": "complete_bash", "COMP_WORDS": "weir in", "COMP_CWORD": "1"}
    command = [str(installed / "weir")]
    done = subprocess.run(command, env=clean_environment() | asked, capture_output=True, text=True, check=True)
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
        env=clean_environment(),
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
        command, cwd=hostile, env=clean_environment(), capture_output=True, text=True, timeout=280, check=False
    )
    logs = "".join(path.read_text() for path in (hostile / "weir-data" / "logs").glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert "this is not of the wheel" not in done.stdout + done.stderr + logs
    assert "was not traced" not in logs
    assert "requests" in done.stderr + done.stdout
