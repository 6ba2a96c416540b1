"""``weir verify``, as a user types it."""

import json
import shutil
from pathlib import Path

import pytest

from tests.contracts.whole_store import write_whole_store
from tests.weir.cli.interactions import refused, weir
from weir.contracts import CommitLog


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whole_store(tmp_path_factory.mktemp("store"))


def test_a_whole_store_passes_and_says_how_much_was_checked(whole: Path) -> None:
    result = weir("verify", "--store", whole)
    assert result.exit_code == 0, result.output
    facts = json.loads(weir("verify", "--store", whole, "--json").stdout)
    assert (facts["findings"], facts["quick"]) == ([], False)
    assert f"{facts['files']} files, " in result.stdout
    assert ": 0 at fault" in result.stdout


def test_each_file_at_fault_is_named_and_the_status_is_one(whole: Path, tmp_path: Path) -> None:
    store = shutil.copytree(whole, tmp_path / "store")
    damaged, missing = store / CommitLog.name(2), next(store.glob("windows/*/*/sketch.bin"))
    data = bytearray(damaged.read_bytes())
    data[60] ^= 1
    damaged.write_bytes(data)
    missing.unlink()
    names = {str(path.relative_to(store)) for path in (damaged, missing)}
    for quick in ([], ["--quick"]):
        result = weir("verify", "--store", store, *quick)
        assert result.exit_code == 1
        lines = result.stdout.splitlines()
        assert {line.split(": ")[1] for line in lines if line.startswith(("damaged", "missing"))} == names
        facts = json.loads(weir("verify", "--store", store, "--json", *quick).stdout)
        assert {finding["name"] for finding in facts["findings"]} == names


def test_a_store_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refused(weir("verify", "--store", tmp_path / "none"), 1) == f"weir: {tmp_path}/none: there is no such store"
