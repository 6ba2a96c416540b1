"""What clients of the API rely on cannot go unnoticed; what is added breaks none."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUF = Path(os.environ.get("BUF", ROOT / ".venv/buf/node_modules/.bin/buf"))
SOURCE = "weir/retrieval/v1/retrieval.proto"
FIELD = "  bool exact = 1;\n"

pytestmark = pytest.mark.skipif(not BUF.exists(), reason=f"{BUF} is not there: `make lint` installs it, with npm")


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the check on a copy of the API in which a text is replaced."""
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    source = tmp_path / "proto" / SOURCE

    def run(old: str = "", new: str = "", *options: str) -> subprocess.CompletedProcess[str]:
        text = source.read_text()
        assert old in text
        source.write_text(text.replace(old, new) if old else text)
        command = ["sh", str(tmp_path / "proto/breaking.sh"), *options]
        environment = os.environ | {"BUF": str(BUF), "PYTHON": sys.executable}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


def test_the_api_breaks_no_client(check: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    found = check()
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("new", ["", FIELD.replace("bool", "string"), FIELD.replace("exact", "full")])
def test_a_field_that_goes_or_changes_is_refused(
    check: Callable[..., subprocess.CompletedProcess[str]], new: str
) -> None:
    found = check(FIELD, new)
    assert found.returncode == 1
    assert "exact" in found.stdout
    assert "breaks clients of the API" in found.stderr


def test_a_field_that_is_added_passes(check: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    found = check(FIELD, f"{FIELD}\n  // More of it.\n  bool more = 90;\n")
    assert found.returncode == 0, found.stdout + found.stderr


def test_what_was_accepted_is_what_counts_from_then_on(
    check: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    assert check(FIELD, "", "--accept").returncode == 0
    assert check().returncode == 0
