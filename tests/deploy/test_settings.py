"""Every file of settings that is checked in, against the schema that editors use and by weir itself."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.deploy.support import KUBERNETES, ROOT, tool
from weir.config import load_settings

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
