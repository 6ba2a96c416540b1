import json
from pathlib import Path

import pytest

from tests.weir.cli.interactions import refused, told, weir
from tests.weir.test_datasets import write_folder
from weir.text import program


def test_a_folder_becomes_a_log_that_evaluate_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_folder(tmp_path / "ml-1m", "ratings.dat")
    result = weir("data", "movielens", folder)
    assert result.exit_code == 0, result.output
    first, second = result.stdout.splitlines()
    assert first == "ml-1m.parquet: 4 events, 3 users, 3 items; 2000-12-31 22:00 to 2000-12-31 22:12 UTC"
    assert second == f"next: {program()} evaluate --quick --log ml-1m.parquet"
    assert "too small to judge: 4 events" in weir(*second.split()[2:]).stdout
    # Written again it is the same; the name may be another.
    before = (tmp_path / "ml-1m.parquet").read_bytes()
    found = told(weir("data", "movielens", folder, "--output", "other.parquet", "--json"))
    assert (found["log"], found["events"]) == ("other.parquet", 4)
    assert (tmp_path / "other.parquet").read_bytes() == before
    assert json.loads(weir("check", "other.parquet", "--json").stdout)["valid_before"] == 4


def test_what_is_no_such_folder_is_told_in_a_line(tmp_path: Path) -> None:
    line = refused(weir("data", "movielens", tmp_path, "-o", tmp_path / "log.parquet"), 1)
    assert "has none of ratings.csv" in line
    assert line.endswith("download and unpack one of https://grouplens.org/datasets/movielens/")
    folder = write_folder(tmp_path / "ml-100k", "u.data")
    assert "its name ends in .parquet" in refused(weir("data", "movielens", folder, "-o", "log.csv"), 2)
