"""Images hold what their stage needs; the bill of materials refuses licences that are not allowed."""

import json
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from deploy.engines.settings import EngineSettings
from deploy.sbom import of_packages, refused
from tests.deploy.blocked import closure
from tests.deploy.support import DEPLOY, ROOT, tool
from tests.weir.cli.test_stages import SMALL
from weir.demo.generator import GeneratorConfig, generate
from weir.serving.client import RetrievalClient, by_history

RULES = tomllib.loads((DEPLOY / "licences.toml").read_text())


def component(name: str, *licences: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "version": "1.0", "bom-ref": f"{name}==1.0", "licenses": list(licences)}


def bill(*components: dict[str, Any], dependencies: dict[str, list[str]] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"component": {"bom-ref": "root"}},
        "components": list(components),
        "dependencies": [{"ref": ref, "dependsOn": needed} for ref, needed in (dependencies or {}).items()],
    }


@pytest.mark.parametrize(
    "licences",
    [
        ({"license": {"id": "MIT"}},),
        ({"expression": "BSD-3-Clause AND (0BSD OR MIT) AND Apache-2.0 WITH LLVM-exception"},),
        ({"license": {"id": "MIT"}}, {"license": {"name": "License :: OSI Approved :: BSD License"}}),
    ],
)
def test_permissive_licences_are_allowed(licences: tuple[dict[str, Any], ...]) -> None:
    assert refused(bill(component("numpy", *licences)), RULES) == []


@pytest.mark.parametrize(
    ("licences", "said"),
    [
        ((), "names no licence"),
        (({"license": {"id": "GPL-3.0-only"}},), "GPL-3.0-only"),
        (({"license": {"id": "MIT"}}, {"license": {"name": "Proprietary"}}), "MIT, Proprietary"),
        (
            ({"expression": "MIT AND (Apache-2.0 WITH Classpath-exception-2.0)"},),
            "Apache-2.0, Classpath-exception-2.0, MIT",
        ),
    ],
)
def test_others_are_named_with_their_package(licences: tuple[dict[str, Any], ...], said: str) -> None:
    assert refused(bill(component("good", {"license": {"id": "MIT"}}), component("Odd_One", *licences)), RULES) == [
        f"Odd_One 1.0: {said}"
    ]


def test_what_was_read_by_a_person_is_allowed() -> None:
    """Only packages by name: another package of the same licence is refused."""
    proprietary = {"license": {"name": "License :: Other/Proprietary License"}}
    assert refused(bill(component("nvidia-cublas", proprietary), component("protobuf")), RULES) == []
    assert refused(bill(component("nvidiaish", proprietary)), RULES) != []


def test_a_bill_of_some_packages_names_no_other() -> None:
    whole = bill(
        component("Jinja2"),
        component("pytest"),
        component("MarkupSafe"),
        dependencies={"root": ["Jinja2==1.0", "pytest==1.0"], "Jinja2==1.0": ["MarkupSafe==1.0"], "pytest==1.0": []},
    )
    made = of_packages(whole, {"jinja2", "markupsafe"})
    assert [each["name"] for each in made["components"]] == ["Jinja2", "MarkupSafe"]
    assert made["dependencies"] == [
        {"ref": "root", "dependsOn": ["Jinja2==1.0"]},
        {"ref": "Jinja2==1.0", "dependsOn": ["MarkupSafe==1.0"]},
    ]


IMAGES = sorted((DEPLOY / "images").glob("*.Dockerfile"))
JARS = {"kafka.Dockerfile", "flink.Dockerfile"}
"""They hold no weir, only jars."""
OURS = [file for file in IMAGES if file.name not in JARS]
EXTRAS = {"pipeline": "pipeline,avro", "trainer": "trainer,cpu", "serving": "serving,redis,cpu"}


@pytest.mark.parametrize("file", IMAGES, ids=lambda file: file.stem)
def test_hadolint_has_no_remark(file: Path) -> None:
    done = subprocess.run([tool("hadolint"), "--no-color", str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.stem)
def test_the_last_stage_is_bare_pinned_and_not_root(file: Path) -> None:
    text = file.read_text()
    last = text[text.rindex("\nFROM ") :]
    assert re.search(r"^ARG PYTHON_IMAGE=\S+@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${PYTHON_IMAGE}"}
    assert "\nUSER 10001:10001\n" in last
    assert "HEALTHCHECK" in last
    assert not re.search(r"\b(pip|apt|apt-get)\b", last)
    installs = [line for line in text.replace("\\\n", " ").splitlines() if "pip install" in line]
    for command in re.findall(r"pip install[^&;]*", " ".join(installs)):
        # Only weir itself has no hash.
        assert "--require-hashes" in command or command.split()[2:3] == ["--no-deps"]


def test_jars_are_put_on_a_java_as_make_engines_fetches_them() -> None:
    settings = EngineSettings(tools=Path())
    folders = {f"{folder}" for folder in (settings.kafka_jars, settings.flink_jars, settings.job_server_jars)}
    copied = set()
    for file in IMAGES:
        if file.name not in JARS:
            continue
        text = file.read_text()
        arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))
        assert re.fullmatch(r"\S+:17-jre-\S+", arguments["JAVA_IMAGE"])
        assert "\nUSER 10001:10001\n" in text
        found = re.findall(r"^COPY (\S+) /opt", text, re.MULTILINE)
        copied |= {re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], name) for name in found}  # noqa: B023
    assert copied == folders


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.stem)
def test_the_extras_are_those_that_are_tried_here(file: Path) -> None:
    text = file.read_text().replace("${EXTRAS}", "trainer,cpu").replace("${DEVICE},", "cpu,")
    assert f'deploy/install.sh /opt/weir/bin/python "{EXTRAS[file.stem]},${{STORES}}"' in text


def test_the_context_holds_every_package_and_nothing_that_is_large_or_secret() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    packages = {path.parent.name for name in ("py.typed", "Cargo.toml") for path in ROOT.glob(f"*/{name}")}
    scripts = set(re.findall(r"deploy/(?:images/\w+\.py|install\.sh)", "".join(file.read_text() for file in IMAGES)))
    assert allowed == packages | scripts | {"LICENSE", "README.md", "pyproject.toml", "requirements-uv.txt", "uv.lock"}


def test_serving_brings_neither_torch_nor_beam_and_the_trainer_no_beam() -> None:
    assert {"torch", "apache-beam"} <= closure(["pipeline", "trainer"])
    assert not {"torch", "apache-beam"} & closure(["serving", "cpu", "s3", "gcs", "azure"])
    assert "apache-beam" not in closure(["trainer", "cpu"])
    assert "torch" not in closure(["pipeline"])


def weir(image: str, file: Path, *arguments: str) -> list[str]:
    blocked = [sys.executable, "-m", "tests.deploy.blocked", EXTRAS[image]]
    return [*blocked, *arguments, "--config", str(file)]


def test_each_stage_runs_with_what_its_image_holds(tmp_path: Path) -> None:
    made = generate(GeneratorConfig(users=30, items=40, events=800, days=3))
    (tmp_path / "log.jsonl").write_bytes(made.lines)
    file = tmp_path / "weir.yaml"
    pipeline = {**SMALL["pipeline"], "log": str(tmp_path / "log.jsonl")}
    file.write_text(json.dumps({**SMALL, "pipeline": pipeline, "store": str(tmp_path / "store")}))
    for image, command in (("pipeline", "ingest"), ("trainer", "train")):
        done = subprocess.run(weir(image, file, command), cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    log = tmp_path / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(weir("serving", file, "serve"), cwd=ROOT, stderr=output)
    try:
        target = said(log, r"ready: gRPC on (127\.0\.0\.1:\d+)")
        with RetrievalClient(target) as client:
            assert client.retrieve([by_history(["jazz-000"])]).hits[0].item_ids
        monitor = weir("serving", file, "monitor", "--set", f"monitor.target={target}")
        with (tmp_path / "monitor.log").open("w") as output:
            watcher = subprocess.Popen(monitor, cwd=ROOT, stderr=output)
        try:
            assert said(tmp_path / "monitor.log", r"window (\S+): model")
        finally:
            watcher.terminate()
            watcher.wait(timeout=120)
    finally:
        server.terminate()
        assert server.wait(timeout=120) == 0


def test_what_an_image_does_not_hold_would_be_missed(tmp_path: Path) -> None:
    file = tmp_path / "weir.yaml"
    file.write_text(json.dumps({"store": str(tmp_path / "store")}))
    done = subprocess.run(weir("serving", file, "train"), cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.startswith("weir: the module torch is missing")) == (1, True)


def said(log: Path, pattern: str) -> str:
    """Wait for a line in a process's log; return the pattern's group."""
    deadline = time.monotonic() + 60
    while not (found := re.search(pattern, log.read_text())):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return found[1]
