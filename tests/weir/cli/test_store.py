"""``weir verify`` and ``weir migrate``, as a user types them."""

import json
import tarfile
from pathlib import Path

import pytest

from tests.weir.cli.interactions import refused, weir
from weir.contracts import CommitLog

ARCHIVE = Path(__file__).parents[2] / "data" / "store-format-1.tar.gz"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"


def migrated(old: Path) -> Path:
    assert weir("migrate", "--store", old, "--set", "pipeline.user_shards=2").exit_code == 0
    return old


def test_an_old_store_is_refused_with_the_command_that_brings_it_up(old: Path) -> None:
    for command in (["inspect", "windows"], ["verify"]):
        line = refused(weir(*command, "--store", old), 1)
        assert f"has format 1, this version reads 2.x: convert it with `weir migrate --store {old}`" in line
    result = weir("migrate", "--store", old, "--set", "pipeline.user_shards=2")
    assert f"{old}: 6 panes are now in the commit log; check it with `weir verify`" in " ".join(result.stdout.split())
    assert "has the newest format already" in weir("migrate", "--store", old).stdout
    assert json.loads(weir("migrate", "--store", old, "--json").stdout) == {"panes": 0}
    assert weir("inspect", "windows", "--store", old).exit_code == 0


def test_a_whole_store_passes_and_says_how_much_was_checked(old: Path) -> None:
    result = weir("verify", "--store", migrated(old))
    assert result.exit_code == 0, result.output
    facts = json.loads(weir("verify", "--store", old, "--json").stdout)
    assert (facts["findings"], facts["quick"]) == ([], False)
    assert f"{facts['files']} files, " in result.stdout
    assert ": 0 at fault" in result.stdout


def test_each_file_at_fault_is_named_and_the_status_is_one(old: Path) -> None:
    damaged, missing = migrated(old) / CommitLog.name(2), next(old.glob("windows/*/*/sketch.bin"))
    data = bytearray(damaged.read_bytes())
    data[60] ^= 1
    damaged.write_bytes(data)
    missing.unlink()
    names = {str(path.relative_to(old)) for path in (damaged, missing)}
    for quick in ([], ["--quick"]):
        result = weir("verify", "--store", old, *quick)
        assert result.exit_code == 1
        lines = result.stdout.splitlines()
        assert {line.split(": ")[1] for line in lines if line.startswith(("damaged", "missing"))} == names
        facts = json.loads(weir("verify", "--store", old, "--json", *quick).stdout)
        assert {finding["name"] for finding in facts["findings"]} == names


@pytest.mark.parametrize("command", ["verify", "migrate"])
def test_a_store_that_is_not_there_is_named(tmp_path: Path, command: str) -> None:
    assert refused(weir(command, "--store", tmp_path / "none"), 1) == f"weir: {tmp_path}/none: there is no such store"
