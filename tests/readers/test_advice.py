"""What to do next depends on why rows were refused, and on what the file really is."""

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.readers import HINTS, OF_READING, LogConfig, Partition, Reason, discover, first_look, next_step

ROWS = [{"user_id": f"jürgen{n % 7}", "item_id": f"i{n % 5}", "timestamp": 1_764_000_000 + n} for n in range(60)]
LINES = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in ROWS)
CSV = "user_id,item_id,timestamp\n" + "".join(f"{','.join(map(str, row.values()))}\n" for row in ROWS)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_next_step_of_its_own(reason: Reason) -> None:
    assert next_step(reason) == HINTS[reason]
    assert [other for other in Reason if HINTS[other] == HINTS[reason]] == [reason]
    assert len(HINTS[reason]) > 20


def test_no_reason_about_values_is_one_of_reading() -> None:
    assert {Reason.MISSING_FIELD, Reason.WRONG_TYPE, Reason.AHEAD_OF_ARRIVAL, Reason.WEIGHT_TOO_LARGE}.isdisjoint(
        OF_READING
    )


def log_of(path: Path, content: bytes) -> Partition:
    path.write_bytes(content)
    [partition] = discover(str(path))
    return partition


def told(partition: Partition) -> str:
    """What the first look says, after it has refused the file."""
    look = first_look([partition], LogConfig())
    assert look.valid == 0
    assert look.advice in look.problem
    return look.advice


WRONG: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "array": ("a log.json", lambda: json.dumps(ROWS, ensure_ascii=False).encode(), "JSON array"),
    "indented array": ("log.json", lambda: json.dumps(ROWS, indent=1).encode(), "JSON array"),
    "array in gzip": ("log.json.gz", lambda: gzip.compress(json.dumps(ROWS).encode()), "JSON array"),
    "objects over lines": (
        "log.jsonl",
        lambda: "\n".join(json.dumps(r, indent=2) for r in ROWS).encode(),
        "several lines",
    ),
    "latin-1 csv": ("log.csv", lambda: CSV.encode("latin-1"), "Latin-1"),
    "latin-1 header": ("log.csv", lambda: CSV.replace("\n", ",ü\n").encode("latin-1"), "Latin-1"),
    "latin-1 json": ("log.jsonl", lambda: LINES.encode("latin-1"), "Latin-1"),
    "windows-1252": ("log.csv", lambda: CSV.replace("ü", "€").encode("cp1252"), "Windows-1252"),
    "latin-1 in gzip": ("log.csv.gz", lambda: gzip.compress(CSV.encode("latin-1")), "Latin-1"),
    "utf-16 csv": ("it's.csv", lambda: CSV.encode("utf-16"), "UTF-16"),
    "utf-16 json": ("log.jsonl", lambda: LINES.encode("utf-16"), "UTF-16"),
    "utf-16 without a mark": ("log.csv", lambda: CSV.encode("utf-16-le"), "UTF-16LE"),
    "big endian": ("log.jsonl", lambda: LINES.encode("utf-16-be"), "UTF-16BE"),
    "gzip as csv": ("log.csv", lambda: gzip.compress(CSV.encode()), "gzipped: name it log.csv.gz"),
    "gzip as json": ("a/log.jsonl", lambda: gzip.compress(LINES.encode()), "gzipped: name it log.jsonl.gz"),
    "csv as gzip": ("log.csv.gz", CSV.encode, "not gzipped: name it log.csv"),
    "json as csv": ("log.csv", LINES.encode, "holds JSON: name it log.jsonl"),
    "zip": ("log.csv", lambda: b"PK\x03\x04" + bytes(range(256)) * 9, "spreadsheet"),
    "html": ("log.json", lambda: b"<!doctype html>\n<html>", "HTML"),
    "csv as json": ("log.jsonl", CSV.encode, ".csv"),
    "separator row": ("log.csv", lambda: b"\xef\xbb\xbfsep=;\r\n" + CSV.replace(",", ";").encode(), "separator"),
    "two colons": ("log.csv", lambda: CSV.replace(",", "::").encode(), "write commas"),
    "rows alone": ("log.csv", CSV.partition("\n")[2].encode, "seems to be a row"),
    "no parquet": ("log.parquet", CSV.encode, HINTS[Reason.UNREADABLE_FILE]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_something_else_is_told_what_it_is(name: str, tmp_path: Path) -> None:
    file, content, part = WRONG[name]
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    assert part in told(log_of(path, content()))


@pytest.mark.parametrize(
    "name", [name for name in WRONG if any(part in name for part in ("array", "lines", "1", "end", "row", "colons"))]
)
def test_the_command_that_is_told_makes_a_log_of_it(name: str, tmp_path: Path) -> None:
    file, content, _ = WRONG[name]
    command = told(log_of(tmp_path / file, content())).rpartition(": ")[2]
    tool = next(tool for tool in ("jq", "iconv", "tail", "sed") if f"{tool} " in command)
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")
    subprocess.run(["sh", "-ec", command], check=True, cwd=tmp_path)
    (tmp_path / file).unlink()
    look = first_look(discover(str(tmp_path)), LogConfig(), most=1)
    assert look.valid == look.rows > 0


def test_parquet_of_another_name_is_told(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    assert told(discover(str(path))[0]) == "the file is Parquet: name it log.parquet"


def test_an_array_on_each_line_is_no_array_of_objects(tmp_path: Path) -> None:
    partition = log_of(tmp_path / "log.jsonl", b'["u", "i", 1]\n' * 9)
    assert "JSON array" not in told(partition)


def test_a_sound_file_leaves_it_to_the_reason(tmp_path: Path) -> None:
    for path, content in ((tmp_path / "a.jsonl", LINES), (tmp_path / "b.csv", CSV)):
        partition = log_of(path, content.encode())
        for reason in (Reason.AHEAD_OF_ARRIVAL, Reason.MISSING_FIELD, Reason.WEIGHT_TOO_LARGE):
            assert next_step(reason, partition) == HINTS[reason]


def test_a_file_without_permission_is_told_so(tmp_path: Path) -> None:
    partition = log_of(tmp_path / "log.csv", CSV.encode())
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    (tmp_path / "log.csv").chmod(0)
    assert "chmod" in told(partition)
