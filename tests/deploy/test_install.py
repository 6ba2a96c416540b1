"""What is installed: the lock's versions, each checked by its hash."""

import os
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.version import Version

from tests.deploy.support import ROOT, tool

RECORDER = """#!/bin/bash
echo "$@" >> calls
if [ "$1" = export ]; then exec {uv} --project {root} "$@"; else cat > "requirements-$(grep -c . calls)"; fi
"""


def test_the_lock_is_of_these_requirements() -> None:
    command = [tool("uv"), "lock", "--check", "--offline"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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
    """Return the version here; None for what is not for this Python."""
    try:
        return Version(version(name))
    except PackageNotFoundError:
        return None


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Return a folder like that of a checkout and its environment, whose uv installs nothing but writes it down."""
    (tmp_path / "uv.lock").write_text((ROOT / "uv.lock").read_text())
    recorder = tmp_path / "uv"
    recorder.write_text(RECORDER.format(uv=tool("uv"), root=ROOT))
    recorder.chmod(0o755)
    return tmp_path


def install(folder: Path, extras: str, **environment: str) -> str:
    """Run the script; return the requirements that it would install."""
    command = [str(ROOT / "deploy" / "install.sh"), str(folder / "python"), extras]
    subprocess.run(command, cwd=folder, env=os.environ | environment, stdin=subprocess.DEVNULL, check=True)
    return max(folder.glob("requirements-*"), key=lambda path: int(path.name.partition("-")[2])).read_text()


def names(requirements: str) -> set[str]:
    return set(re.findall(r"^(\S+)==", requirements, re.MULTILINE))


def test_extras_come_with_hashes_and_with_what_builds_weir(recorded: Path) -> None:
    wanted = install(recorded, "serving,redis,cpu,s3", TORCH_INDEX="")
    assert {"setuptools", "grpcio", "redis", "faiss-cpu", "s3fs"} <= names(wanted)
    assert not {"torch", "apache-beam"} & names(wanted)
    unhashed = [line for line in re.split(r"\n(?=\S)", wanted.strip()) if "--hash=sha256:" not in line]
    assert unhashed == []
    (last,) = [line for line in (recorded / "calls").read_text().splitlines() if line.startswith("pip install")]
    assert "--require-hashes" in last


def test_torch_of_another_index_comes_without_cuda(recorded: Path) -> None:
    with_cuda = install(recorded, "trainer,cpu", TORCH_INDEX="")
    without = install(recorded, "trainer,cpu", TORCH_INDEX="https://torch.example")
    cuda = names(with_cuda) - names(without)
    assert {"torch", "triton", "nvidia-cublas"} <= cuda
    assert all(name in ("torch", "triton") or name.startswith(("nvidia-", "cuda-")) for name in cuda)
    assert {"sympy", "faiss-cpu", "onnx"} <= names(without)
    calls = (recorded / "calls").read_text()
    assert re.search(rf"pip install .*--index-url https://torch\.example .*torch=={re.escape(version('torch'))}", calls)
