"""What the checks of the deployment share: the folder, kustomize's output, the tools."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = sorted(folder.name for folder in (KUBERNETES / "overlays").iterdir())
COMPONENTS = sorted(folder.name for folder in (KUBERNETES / "components").iterdir())

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl to run kustomize")


def tool(name: str) -> str:
    """Return a tool that lies beside the interpreter."""
    path = Path(sys.executable).parent / name
    assert path.exists(), f"{name} is missing: make .venv/dev.stamp"
    return str(path)


@cache
def rendered(folder: Path) -> str:
    """Return what `kubectl kustomize` makes of a folder."""
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def resources(folder: Path) -> list[dict[str, Any]]:
    """Return the resources of a folder."""
    return list(yaml.safe_load_all(rendered(folder)))


def with_components(names: list[str], folder: Path) -> Path:
    """Write an overlay of the base with these components."""
    folder.mkdir(exist_ok=True)
    where = os.path.relpath(KUBERNETES, folder.resolve())
    kustomization = {"resources": [f"{where}/base"], "components": [f"{where}/components/{name}" for name in names]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return folder
