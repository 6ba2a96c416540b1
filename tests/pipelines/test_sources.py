from pathlib import Path

import fsspec
import pytest

from pipelines.sources import Format, discover

NAMES = ["a.jsonl", "b/c.json", "b/d.jsonl.gz", "e.json.gz", "f.parquet"]
OTHERS = [".hidden.jsonl", "_tmp/x.jsonl", "b/_x.parquet", "g.jsonl.tmp", "h.csv", "README"]


def make(folder: Path) -> None:
    for name in NAMES + OTHERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"12345")


def test_a_folder_is_searched_to_its_depths(tmp_path: Path) -> None:
    make(tmp_path)
    found = discover(str(tmp_path))
    assert [partition.key for partition in found] == NAMES
    gz = Format.GZIP_LINES
    assert [partition.format for partition in found] == [Format.JSON_LINES, Format.JSON_LINES, gz, gz, Format.PARQUET]
    assert {partition.size for partition in found} == {5}
    with found[1].open() as file:
        assert file.read() == b"12345"


def test_a_file_and_a_pattern(tmp_path: Path) -> None:
    make(tmp_path)
    assert [partition.key for partition in discover(str(tmp_path / "b/c.json"))] == ["c.json"]
    assert [partition.key for partition in discover(str(tmp_path / "*.json*"))] == ["a.jsonl", "e.json.gz"]
    assert [partition.key for partition in discover(str(tmp_path / "**/*.parquet"))] == ["f.parquet"]
    assert [partition.key for partition in discover(str(tmp_path / "b*/*.json"))] == ["b/c.json"]


def test_new_files_are_seen_on_an_object_store() -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/sources/log/a.jsonl", b"1")
    assert [(p.key, p.size) for p in discover("memory://sources/log")] == [("a.jsonl", 1)]
    fs.pipe_file("/sources/log/a.jsonl", b"12")
    fs.pipe_file("/sources/log/b.jsonl", b"1")
    found = discover("memory://sources/log")
    assert [(partition.key, partition.size) for partition in found] == [("a.jsonl", 2), ("b.jsonl", 1)]
    with found[1].open() as file:
        assert file.read() == b"1"


@pytest.mark.parametrize("name", ["absent", "absent/*.jsonl"])
def test_a_log_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        discover(str(tmp_path / name))


def test_a_file_that_is_no_log_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "events.csv").write_bytes(b"ann,blue")
    (tmp_path / "events.ndjson").write_bytes(b"{}")
    for _ in range(2):
        assert [partition.key for partition in discover(str(tmp_path))] == ["events.ndjson"]
    assert [record.getMessage().partition(" is left out")[0] for record in caplog.records] == [f"{tmp_path}/events.csv"]
