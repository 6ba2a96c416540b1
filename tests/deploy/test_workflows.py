"""The workflows of CI and of releases: their form, and that what they run exists. They run nowhere in the tests."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.support import DEPLOY, ROOT, tool

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_schema_of_workflows_fits() -> None:
    command = [tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", *map(str, WORKFLOWS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_zizmor_finds_no_way_in() -> None:
    """Actions that are not pinned, secrets that leak, text of strangers that is run, and the like."""
    command = [tool("zizmor"), "--offline", "--no-progress", *map(str, WORKFLOWS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def jobs(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())["jobs"]
    return found


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_what_is_run_exists(file: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for job in jobs(file).values():
        for step in job["steps"]:
            words = re.findall(r"^\s*make (.+)$", step.get("run", ""), re.MULTILINE)
            targets = [word for line in words for word in line.split() if "=" not in word]
            assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
    assert (ROOT / ".ci" / "run").exists()
    assert ".ci/run" in [step.get("run") for job in jobs(file).values() for step in job["steps"]]


def test_a_release_holds_what_the_targets_write_and_every_image() -> None:
    release = jobs(ROOT / ".github" / "workflows" / "release.yml")
    makefile = (ROOT / "Makefile").read_text()
    paths = [step["with"]["path"] for step in release["build"]["steps"] if "upload-artifact" in step.get("uses", "")]
    assert paths == ["dist/weir_retrieval-*", "build/weir.cdx.json"]
    assert "--out-dir dist\n" in makefile
    assert "deploy.sbom build/weir.cdx.json\n" in makefile
    images = {file.stem for file in (DEPLOY / "images").glob("*.Dockerfile")}
    assert set(release["images"]["strategy"]["matrix"]["image"]) == images - {"flink", "kafka"}


def test_nothing_is_published_before_the_wheel_has_run() -> None:
    release = jobs(ROOT / ".github" / "workflows" / "release.yml")
    before: dict[str, set[str]] = {}
    for name, job in release.items():
        needs = job.get("needs", [])
        direct = {needs} if isinstance(needs, str) else set(needs)
        before[name] = direct.union(*(before[each] for each in direct))
    writers = {name for name, job in release.items() if "write" in job.get("permissions", {}).values()}
    assert writers == {"images", "docs", "publish", "release"}
    assert all({"build", "wheel"} <= before[name] for name in writers)
