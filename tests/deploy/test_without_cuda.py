"""Taking CUDA out of torch: on a copy of what is installed here, and on libraries of the system."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.support import DEPLOY

SCRIPT = DEPLOY / "images/without_cuda.py"
PACKAGES = Path(str(importlib.util.find_spec("numpy").origin)).parents[1]  # type: ignore[union-attr]
TRAINS = """
import torch
a = torch.nn.Parameter(torch.eye(64)); torch.linalg.svd(a @ a)[1].sum().backward()
print(torch.__file__, torch.cuda.is_available(), a.grad is not None, torch.distributed.is_available())
"""

sys.path.insert(0, str(SCRIPT.parent))
from without_cuda import weaken  # noqa: E402


@pytest.mark.skipif(not (PACKAGES / "nvidia").is_dir(), reason="the torch that is installed here is for CPUs")
def test_torch_trains_without_the_libraries_of_cuda(tmp_path: Path) -> None:
    for name in ("torch", "nvidia"):
        shutil.copytree(PACKAGES / name, tmp_path / name, symlinks=True)
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "without CUDA" in run(str(SCRIPT))
    assert run("-c", TRAINS).split() == [f"{tmp_path}/torch/__init__.py", "False", "True", "True"]
    assert sum(path.lstat().st_size for path in tmp_path.rglob("*")) < 1.2 * 2**30


def test_only_undefined_symbols_become_weak(tmp_path: Path) -> None:
    [library] = (PACKAGES / "numpy/_core").glob("_multiarray_umath*.so")
    copy = tmp_path / library.name
    shutil.copy(library, copy)
    count = weaken(copy)

    def symbols(path: Path) -> list[list[str]]:
        shown = subprocess.run(
            ["readelf", "--dyn-syms", "--wide", str(path)], capture_output=True, text=True, check=True
        )
        return [line.split() for line in shown.stdout.splitlines() if ":" in line and len(line.split()) >= 8][1:]

    changed = 0
    for before, after in zip(symbols(library), symbols(copy), strict=True):
        undefined = before[6] == "UND" and int(before[0][:-1]) > 0
        assert after[4] == ("WEAK" if undefined else before[4])
        assert before[:4] + before[5:] == after[:4] + after[5:]
        changed += undefined
    assert changed == count > 100


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(b"no library" * 10)
    with pytest.raises(ValueError, match="no library of 64 bits"):
        weaken(file)
