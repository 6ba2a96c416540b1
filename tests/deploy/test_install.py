"""What is installed: the lock's versions, each checked by its hash."""

import os
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.version import Version

from tests.deploy.support import ROOT, tool

UV = """#!/bin/bash
if [ "$1" = export ]; then exec {uv} --project {root} "$@"; fi
echo "uv $@" >> calls
cp "${{@: -1}}" requirements
exit ${{UV_STATUS:-0}}
"""
PYTHON = """#!/bin/bash
if [ "$3" = config ]; then echo "$PIP_SETTINGS"; else echo "pip ${{@:3}}" >> calls; cp "${{@: -1}}" requirements; fi
"""


def test_the_lock_is_of_these_requirements() -> None:
    """`make lock` makes it so. An index in the environment would be compared, too."""
    command = [tool("uv"), "lock", "--check", "--offline"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_lock_names_no_mirror() -> None:
    """Of the index of whoever made it."""
    hosts = set(re.findall(r"https?://([^/\"]+)", (ROOT / "uv.lock").read_text()))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


def test_the_tests_run_with_the_locked_versions() -> None:
    extras = ["all", "bench", "deploy-checks", "dev"]
    command = [tool("uv"), "export", "--frozen", "--no-emit-project", "--no-hashes", "--no-annotate", "--no-header"]
    command += [f"--extra={extra}" for extra in extras]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    locked = [re.fullmatch(r"(\S+)==(\S+)(?: ; (.*))?", line) for line in lines]
    found = {each[1]: (each[2], installed(each[1])) for each in locked if each}
    assert len(found) == len(lines) > 100
    other = {name: pair for name, pair in found.items() if pair[1] not in (None, Version(pair[0]))}
    assert other == {}
    assert found["torch"][1] is not None


def installed(name: str) -> Version | None:
    """Return the version here, without the mark of a build (torch's `+cpu`); None for what is not for this Python."""
    try:
        return Version(Version(version(name)).public)
    except PackageNotFoundError:
        return None


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Return a folder like that of a checkout and its environment, where nothing is installed but written down."""
    (tmp_path / "uv.lock").write_text((ROOT / "uv.lock").read_text())
    for name, text in (("uv", UV), ("python", PYTHON)):
        (tmp_path / name).write_text(text.format(uv=tool("uv"), root=ROOT))
        (tmp_path / name).chmod(0o755)
    return tmp_path


def install(folder: Path, extras: str, **environment: str) -> str:
    """Run the script; return the requirements that it would install."""
    command = [str(ROOT / "deploy" / "install.sh"), str(folder / "python"), extras]
    clean = {name: value for name, value in os.environ.items() if name != "TORCH_INDEX"}
    subprocess.run(command, cwd=folder, env=clean | environment, stdin=subprocess.DEVNULL, check=True)
    return (folder / "requirements").read_text()


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def names(requirements: str) -> set[str]:
    return set(re.findall(r"^(\S+)==", requirements, re.MULTILINE))


def test_extras_come_with_hashes_and_with_what_builds_weir(recorded: Path) -> None:
    wanted = install(recorded, "serving,redis,cpu,s3")
    assert {"setuptools", "grpcio", "redis", "faiss-cpu", "s3fs"} <= names(wanted)
    assert not {"torch", "apache-beam"} & names(wanted)
    unhashed = [line for line in re.split(r"\n(?=\S)", wanted.strip()) if "--hash=sha256:" not in line]
    assert unhashed == []
    (call,) = calls(recorded)
    assert call.startswith("uv pip install")
    assert "--require-hashes" in call


@pytest.mark.parametrize("key", [":env:.index-url", "global.index-url", "install.extra-index-url", "global.no-index"])
def test_pip_installs_where_it_has_an_index_of_its_own(recorded: Path, key: str) -> None:
    settings = f":env:.timeout='9'\n{key}='https://mirror.example'\nsite.cert='x'"
    wanted = install(recorded, "serving,cpu", PIP_SETTINGS=settings)
    assert "grpcio" in names(wanted)
    (call,) = calls(recorded)
    assert call.startswith("pip install")
    assert "--require-hashes" in call


def test_pip_installs_where_uv_cannot(recorded: Path) -> None:
    """For instance where pip alone knows the certificates."""
    install(recorded, "serving,cpu", UV_STATUS="1", PIP_SETTINGS="global.cert='x'\n:env:.find-links='index-url'")
    assert [call.split()[0] for call in calls(recorded)] == ["uv", "pip"]
    assert all("--require-hashes" in call for call in calls(recorded))


def test_torch_of_another_index_comes_without_cuda(recorded: Path) -> None:
    with_cuda = install(recorded, "trainer,cpu")
    (recorded / "calls").unlink()
    without = install(recorded, "trainer,cpu", TORCH_INDEX="https://torch.example")
    cuda = names(with_cuda) - names(without)
    assert {"torch", "triton", "nvidia-cublas"} <= cuda
    assert all(name in ("torch", "triton") or name.startswith(("nvidia-", "cuda-")) for name in cuda)
    assert {"sympy", "faiss-cpu", "onnx"} <= names(without)
    torch, _ = calls(recorded)
    assert "--require-hashes" not in torch
    assert re.fullmatch(rf".* --index-url https://torch\.example torch=={re.escape(str(installed('torch')))}", torch)
