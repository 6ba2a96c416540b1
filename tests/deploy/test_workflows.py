"""Workflows, the compose file, the documentation site and the settings of deployments: valid and pinned."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

from deploy.docs_site import add_version
from tests.deploy.support import DEPLOY, KUBERNETES, ROOT, tool
from weir.config import assignments, load_settings
from weir.up.ports import with_ports

FILE = DEPLOY / "compose.yaml"
SERVICES = yaml.safe_load(FILE.read_text())["services"]


def test_it_is_what_the_compose_specification_allows() -> None:
    command = [tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_has_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "build" in service or "@sha256:" in service["image"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_what_is_mounted_is_there() -> None:
    sources = {volume.split(":")[0] for service in SERVICES.values() for volume in service["volumes"]}
    for folder in sorted(source for source in sources if source.startswith(".")):
        assert (DEPLOY / folder).is_dir(), folder
    build = SERVICES["weir"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_its_settings_are_settings_and_their_ports_are_published() -> None:
    service = SERVICES["weir"]
    pairs = [one.removeprefix("--set=") for one in service["command"] if one.startswith("--set=")]
    values, problems = assignments(pairs)
    assert not problems
    settings = with_ports(load_settings(overrides=values | {"store": "s"}), 0)
    assert settings.serving.host == settings.monitor.page_host == "0.0.0.0"  # noqa: S104 - published on loopback only
    assert {f"127.0.0.1:{port}:{port}" for port in (settings.serving.port, settings.monitor.page_port)} <= set(
        service["ports"]
    )


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


def built(folder: Path, text: str) -> Path:
    (folder / "api").mkdir(parents=True)
    (folder / "index.html").write_text(text)
    (folder / "api" / "weir.html").write_text(text)
    return folder


def test_versions_lie_side_by_side_and_the_newest_is_shown(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for number, version in enumerate(("0.9.0", "0.10.0", "0.2.1", "0.9.1")):
        add_version(built(tmp_path / str(number), version), site, Version(version))
    listed = json.loads((site / "versions.json").read_text())
    assert [(each["version"], each["title"], each["aliases"]) for each in listed] == [
        ("0.10", "0.10.0", ["latest"]),
        ("0.9", "0.9.1", []),
        ("0.2", "0.2.1", []),
    ]
    assert [(site / each["version"] / "api" / "weir.html").read_text() for each in listed] == [
        "0.10.0",
        "0.9.1",
        "0.2.1",
    ]
    assert 'url=0.10/index.html"' in (site / "index.html").read_text()


def test_pages_that_a_patch_release_drops_are_gone_and_an_older_patch_is_refused(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    first = built(tmp_path / "first", "0.1.0")
    (first / "dropped.html").write_text("")
    add_version(first, site, Version("0.1.0"))
    second = built(tmp_path / "second", "0.1.1")
    add_version(second, site, Version("0.1.1"))
    assert not (site / "0.1" / "dropped.html").exists()
    with pytest.raises(ValueError, match=r"newer than 0\.1\.0"):
        add_version(first, site, Version("0.1.0"))
    assert (site / "0.1" / "index.html").read_text() == "0.1.1"


FILES = sorted(KUBERNETES.rglob("weir.yaml"))
SCHEMA = ROOT / "docs/weir.schema.json"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_it_names_its_schema_and_obeys_it(file: Path) -> None:
    assert file.read_text().startswith(f"# yaml-language-server: $schema={os.path.relpath(SCHEMA, file.parent)}\n")
    command = [tool("check-jsonschema"), "--schemafile", str(SCHEMA), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    load_settings(file)


def test_the_schema_itself_is_one() -> None:
    command = [tool("check-jsonschema"), "--check-metaschema", str(SCHEMA)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    "text", ["servin: {}", "serving: {port: -1}", "trainer: {tower: {kind: none}}", "store: ''", "monitor: {k: []}"]
)
def test_the_schema_refuses_what_weir_refuses(text: str, tmp_path: Path) -> None:
    file = tmp_path / "weir.yaml"
    file.write_text(text)
    command = [tool("check-jsonschema"), "--schemafile", str(SCHEMA), str(file)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
